// What a program with ioredis does. Prints one JSON document.
import { Redis } from "ioredis";

const [port, token] = process.argv.slice(2);
const client = new Redis({ host: "127.0.0.1", port: Number(port), password: token, connectionName: "tests" });
const throttled = await client.call("CL.THROTTLE", "ioredis", 2, 1, 60);
const pipeline = client.pipeline();
for (let i = 0; i < 3; i++) pipeline.call("CL.THROTTLE", "ioredis", 2, 1, 60);
const pipelined = (await pipeline.exec()).map(([error, answer]) => answer);
const hit = await client.call("RB.HIT", "ioredis", "5/minute", "COST", 2);
const wrong = await client.call("RB.HIT", "ioredis", "5/fortnight").catch((error) => error.message);
const name = await client.client("GETNAME");
await client.quit();
console.log(JSON.stringify({ throttled, pipelined, hit, wrong, name }));
