// A server that knows nothing of 2PHP, in the manner of an Express application: a chain of middleware, JSON bodies,
// and a route for POST /orders. Prints its port, then one line for each request.
"use strict";
const http = require("node:http");

const chain = [
  (request, _response, next) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const raw = Buffer.concat(chunks).toString();
      request.body = raw ? JSON.parse(raw) : {};
      next();
    });
  },
  (request, response, next) => {
    console.log(`${request.method} ${request.url}`);
    if (request.method !== "POST" || request.url !== "/orders") {
      next();
      return;
    }
    response.writeHead(201, { "Content-Type": "application/json", "X-Powered-By": "Express" });
    response.end(JSON.stringify({ id: "order-1", sent: request.body }));
  },
  (_request, response) => {
    response.writeHead(404);
    response.end();
  },
];

const server = http.createServer((request, response) => {
  const run = (step) => chain[step](request, response, () => run(step + 1));
  run(0);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
