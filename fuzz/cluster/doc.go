// Command cluster runs a whole cluster in one goroutine, from one seed: the
// broker's core on each node is the real one (raft, planner, log writer, rows
// writer, sealer, recovery), and network, disks and clocks are simulated.
// Messages are lost, delayed, reordered and sent twice, links are cut in one or
// both directions, processes are killed and paused, the power goes, disks stop
// answering, wall clocks jump, and leadership is handed over. Clients call any
// node and follow the leader.
//
// # What is checked
//
//   - Replicas that have applied the same entries hold the same state (digest).
//   - Every answered push is at the answered place on every node, with its
//     payload; each transactionId is stored once; what was refused is nowhere.
//   - Reads and conditional writes of a key are linearizable (porcupine).
//   - A counter is what the answered increments make it, within what the
//     unanswered ones allow.
//   - Of one partition and group no two leases are live at once in real time,
//     and no message is delivered after its ack was answered.
//   - When all is well again the cluster takes writes.
//
// A failure prints the seed; the same seed runs the same history.
package main
