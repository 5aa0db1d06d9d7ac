#!/usr/bin/env node
// A payment step, exactly once.
//
// A worker takes a payment request under a lease, charges the card, and commits
// everything that follows from it in one call: the ack, a receipt, the order's
// state, a reminder, and a marker that says "this payment was charged". When the
// provider sends its event again, under another id, the marker refuses the step.
//
// Needs a broker at QUEEN_URL (http://127.0.0.1:6632) and Node 18 or later.
'use strict';

const base = process.env.QUEEN_URL || 'http://127.0.0.1:6632';
const run = `js-${process.pid}-${Date.now()}`; // names of this run
const payments = `payments-${run}`, receipts = `receipts-${run}`, reminders = `reminders-${run}`;

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

async function pop(queue, group, params) {
  const query = new URLSearchParams({ consumerGroup: group, subscriptionMode: 'all', wait: 'true', timeout: '5000', ...params });
  const answer = await call('GET', `/api/v1/pop/queue/${queue}?${query}`);
  return answer ? answer.messages : [];
}

const pushPayment = (event) => call('POST', '/api/v1/push', {
  items: [{ queue: payments, partition: 'card-7', transactionId: event, payload: { order: 1, cents: 4200 } }],
});

// step is the whole effect of a charged payment, as one transaction.
function step(message) {
  const payment = message.data;
  const order = `${run}:${payment.order}`;
  return call('POST', '/api/v1/transaction', {
    operations: [
      { type: 'ack', transactionId: message.transactionId, partitionId: message.partitionId, consumerGroup: 'chargers', leaseId: message.leaseId },
      { type: 'push', items: [{ queue: receipts, partition: 'card-7', payload: payment }] },
    ],
    requiredLeases: [message.leaseId],
    kv: [
      { op: 'put', ns: 'orders', key: order, value: 'charged', ttlSeconds: 86400 },
      { op: 'putIfAbsent', ns: 'charged', key: order, value: 1, ttlSeconds: 86400, required: true },
    ],
    timers: [{
      op: 'schedule', queue: reminders, timerKey: order, delayMs: 300, payload: Buffer.from(JSON.stringify(payment)).toString('base64'),
    }],
  });
}

async function main() {
  await pushPayment('evt-1');
  const [message] = await pop(payments, 'chargers', { batch: 1 });
  check('the step is committed', true, (await step(message)).success);

  await pushPayment('evt-1-again');
  const [again] = await pop(payments, 'chargers', { batch: 1 });
  const refused = await step(again);
  check('the second step is committed', false, refused.success);
  check('its reason', 'kv_precondition', refused.reason);
  const acked = await call('POST', '/api/v1/ack', {
    transactionId: again.transactionId, partitionId: again.partitionId, consumerGroup: 'chargers', leaseId: again.leaseId,
  });
  check('the event is acked by itself', true, acked[0].success);

  check('state of the order', 'charged', (await call('GET', `/api/v1/kv/orders/${run}:1`)).value);
  const orders = async (queue, group) => (await pop(queue, group, { commitOnDelivery: 'true' })).map((m) => m.data.order);
  check('reminders', [1], await orders(reminders, 'reminded'));
  check('receipts', [1], await orders(receipts, 'audit'));
  check('payments left', 0, (await call('GET', `/api/v1/resources/queues/${payments}/depth?group=chargers`)).pending);
}

main().catch((err) => {
  console.error('FAIL', err);
  process.exit(1);
});
