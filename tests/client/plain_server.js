// An Express application that knows nothing of 2PHP. Prints its port, then one line for each request.
"use strict";
const express = require("express");

const app = express();
app.use((request, _response, next) => {
  console.log(`${request.method} ${request.url}`);
  next();
});
app.use(express.json());
app.post("/orders", (request, response) => {
  response.status(201).json({ id: "order-1", sent: request.body });
});

const server = app.listen(0, "127.0.0.1", () => console.log(server.address().port));
