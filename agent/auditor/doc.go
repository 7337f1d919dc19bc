// Package auditor holds Placement against the ledger and libvirt, by package audit,
// and heals what is provable: by itself at the agent's start and on a slow clock, and
// when an operator asks.
//
// It reads the ledger, libvirt's list of domains, and of Placement who holds what of
// each provider of the tree: one call a provider. Only consumers that do not agree
// are read whole, and only of those that may be another host's other hosts are asked.
//
// It alone writes allocations that stand still and do not agree. Invariants:
//
//   - each write carries the consumer generation that its row was judged by, and the
//     row is judged anew, by what stands then, right before: while no verb works on
//     the instance. What another agent writes in between is read again, and the hosts
//     by whose word a row is provable are asked again;
//   - by itself an agent leaves what another host holds a part of until it has stood
//     for a while;
//   - what gives back is written before what takes;
//   - a row that has become another one meanwhile is not healed by this audit;
//   - where all agrees nothing is written, and with P providers P calls are made.
package auditor
