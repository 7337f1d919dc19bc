// Package sim runs a whole fleet in one process: hosts with the real ledger, host
// verbs and conductor, the embedded Placement behind its real client, and fake
// hypervisors that fail as libvirt does, on a clock and in an order that come from
// a seed. It breaks them in every way that the design names, and holds after every
// change what must never be broken.
//
// It reads and writes nothing outside of its process. One seed is one run: the same
// faults at the same places, the same trace, on any machine.
//
// # The world
//
// Every host has two cells, and of dedicated CPUs, huge pages and PCI functions so few that
// instances meet at them (hardware.go). Instances of all kinds come in turn: ones that float
// beside ones with pins, pages or a function.
//
// Every host has a machine (hypervisor, disks, the ledger's store), which outlives
// its agent, and an agent: one simruntime.Process that can be killed at any point
// and is started again, as systemd does it. Between them are wires: a verb to
// another host, a request to Placement, a call of libvirt and a commit of the store
// each pass a point (points.go) before and after their effect. At a point the agent
// may die, a message may be lost, late or sent twice, a commit may fail, and anything
// else in the world may break.
//
// # What is held
//
// At every moment (moment.go): no guest runs twice, but where a story says that an operator's word
// was wrong, and there until its host is reached again; nobody lets a guest run but the
// holder of its token; a copy that was overtaken never runs; an instance has at most
// one token; claims never exceed their host; what a verb answered is durable; nothing
// arrives without a claim that awaits it; one attempt has one stream; two hosts that share
// nothing never open a connection to each other; a drain moves no guest twice at once, begins
// what it has named, holds its limits and its order, and its host stays closed while it runs.
//
// In one random run of sixteen hosts keep their own tree in Placement (agent/reporter), change its
// shape, and audit what is held of it (agent/auditor), at moments that come by chance (reports.go):
// an instance between two hosts is counted on both, whoever audits meanwhile.
//
// libvirt asks the guard before each start and each arrival (guard.go), and in one random run of
// three somebody with virsh starts instances wherever they seem to be off. In one of sixteen
// somebody saves instances (saved.go): what is saved is lost by no move or change.
//
// The fleet's records of a host are kept, and its instances started after a boot, by the agent's own
// keeper (agent.Keeper).
//
// In stories of their own the store of these records is restored, put back as it was, emptied, or
// replaced by one of another kind (loststore.go), while hosts are off or evacuated: nothing runs twice
// by what it lost, and where an operator does what status tells him nothing waits for ever.
//
// In stories of their own a host with a good certificate, and no part in anything, asks for what is
// others' (hostile.go): what agent/api and fleet/permit let it do changes nothing of any guest.
//
// When all is up again (rest.go): every move has ended and says truthfully how, or is
// in doubt where the world itself has lost the answer; each guest is where its token
// is, as its user left it; ledgers, Placement, hypervisors and disks hold the guests
// that are there and nothing else.
//
// # Mutants
//
// A mutant (mutants.go) is one deliberate breakage, made in the wires around the real
// parts or in the conductor's steps. A run that does not notice any of them proves
// nothing.
package sim
