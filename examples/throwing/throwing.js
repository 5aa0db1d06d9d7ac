#!/usr/bin/env node
// A consumer whose handler throws.
//
// The loop survives it: the message is nacked as failed with the error's text,
// one retry is charged, and the message comes back. Job 3 throws once and then
// works. Job 4 always throws: with a retry limit of 1 it is tried twice and then
// filed as a dead letter, with its error, and the loop goes on to job 5.
//
// Needs a broker at QUEEN_URL (http://127.0.0.1:6632) and Node 18 or later.
'use strict';

const base = process.env.QUEEN_URL || 'http://127.0.0.1:6632';
const queue = `jobs-js-${process.pid}-${Date.now()}`;

async function call(method, path, body) {
  const resp = await fetch(base + path, {
    method, headers: { 'Content-Type': 'application/json' }, body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await resp.text();
  if (!resp.ok) throw new Error(`${method} ${path}: status ${resp.status}: ${text}`);
  return text ? JSON.parse(text) : null;
}

function check(what, expected, found) {
  const [e, f] = [JSON.stringify(expected), JSON.stringify(found)];
  if (e !== f) {
    console.error(`FAIL ${what}: expected ${e}, found ${f}`);
    process.exit(1);
  }
  console.log(`ok   ${what}: ${f}`);
}

const tries = {}; // job -> how often its handler ran
const handled = [];

async function handler(job) {
  tries[job] = (tries[job] || 0) + 1;
  if (job === 3 && tries[job] === 1) throw new Error('the printer was off');
  if (job === 4) throw new Error('job 4 cannot be read');
  handled.push(job);
}

// consume runs until the queue is empty. One message a pop: a batch is settled
// whole.
async function consume() {
  for (;;) {
    const answer = await call('GET', `/api/v1/pop/queue/${queue}?batch=1&consumerGroup=printers&subscriptionMode=all`);
    if (!answer) return;
    const [m] = answer.messages;
    const ack = { transactionId: m.transactionId, partitionId: m.partitionId, leaseId: m.leaseId, consumerGroup: 'printers' };
    try {
      await handler(m.data);
      ack.status = 'completed';
    } catch (err) {
      ack.status = 'failed';
      ack.error = err.message;
    }
    const [done] = await call('POST', '/api/v1/ack', ack);
    if (!done.success) throw new Error(`ack: ${JSON.stringify(done)}`);
  }
}

async function main() {
  await call('POST', '/api/v1/configure', { queue, options: { retryLimit: 1 } });
  await call('POST', '/api/v1/push', { items: [1, 2, 3, 4, 5].map((n) => ({ queue, payload: n })) });
  await consume();
  check('jobs done, in order', [1, 2, 3, 5], handled);
  check('tries of each job', { 1: 1, 2: 1, 3: 2, 4: 2, 5: 1 }, tries);
  const dead = (await call('GET', `/api/v1/dlq?queue=${queue}`)).messages;
  check('dead letters', [[4, 'job 4 cannot be read']], dead.map((d) => [d.data, d.errorMessage]));
  check('jobs left', 0, (await call('GET', `/api/v1/resources/queues/${queue}/depth?group=printers`)).pending);
}

main().catch((err) => {
  console.error('FAIL', err);
  process.exit(1);
});
