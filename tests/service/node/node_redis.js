// What a program with node-redis does, with RESP2 and RESP3. Prints one JSON document.
import { createClient } from "redis";

const [port, token] = process.argv.slice(2);
const found = {};
for (const RESP of [2, 3]) {
  const client = createClient({ url: `redis://127.0.0.1:${port}`, password: token, RESP, name: "tests" });
  client.on("error", (error) => console.error(error));
  await client.connect();
  const key = `node-redis-${RESP}`;
  const throttle = () => client.sendCommand(["CL.THROTTLE", key, "2", "1", "60"]);
  const pipelined = await Promise.all([throttle(), throttle(), throttle(), throttle()]);
  const hit = await client.sendCommand(["RB.HIT", key, "5/minute"]);
  const wrong = await client.sendCommand(["RB.HIT", key]).catch((error) => error.message);
  await client.close();
  found[RESP] = { pipelined, hit, wrong };
}
console.log(JSON.stringify(found));
