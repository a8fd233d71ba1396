// An Express application behind Ratebound: PORT, RATEBOUND_URL and RATEBOUND_TOKEN are taken from the environment.
import express from "express";
import { ratebound } from "./ratebound.js";

const { PORT = "3000", RATEBOUND_URL = "http://127.0.0.1:4290", RATEBOUND_TOKEN } = process.env;

const app = express();
app.use(
  ratebound({
    url: RATEBOUND_URL,
    token: RATEBOUND_TOKEN,
    headers: ["x-api-key"],
    whenAway: { limit: 20, window: 1000 },
  }),
);
app.get("/orders", (req, res) => res.json({ orders: [] }));
app.get("/search", (req, res) => res.json({ found: [] }));

const server = app.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on port ${server.address().port}`));
