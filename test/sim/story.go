package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// Story is a fleet, its guests, and what is wanted of them.
type Story struct {
	Name    string
	Hosts   []HostPlan
	Sharing bool // all disks are counted on a sharing provider
	Streams bool // guests travel by Berth's own streams, not by libvirt's TLS
	Guests  []GuestPlan
	Moves   []MovePlan
	// Apart are pairs of hosts with no network between them. All moves of such a story are
	// between hosts that share nothing.
	Apart [][2]string
	// Records: hosts keep records of each other. Deaths are hosts that are taken for dead, and
	// SelfFence has each reset itself before its lease is over.
	Records   bool
	Deaths    []DeathPlan
	SelfFence bool
	// Losses are what becomes of the store of the records. Embedded: it is that of the embedded
	// Placement, whose records are restored with it. Etcd: every host may write the records of any
	// instance.
	Losses         []LossPlan
	Embedded, Etcd bool
	Drains         []DrainPlan // hosts that are emptied
	Hostile        bool        // a host with a good certificate asks for what is not its own
	// Outbound is how many live moves may be under way from a host at once, Link how many between
	// two, and Inbound how many guests of live moves and of drains may be on their way to one;
	// 0 for any number.
	Outbound, Link, Inbound int
	Pace                    drivertest.Pace
	// Events are what goes wrong in the story itself.
	Events []Event
	// NoStart is a host on which no guest can be started; empty for none.
	NoStart string
	Want    migration.Outcome // of every move, where nothing else is broken; empty for any
}

// HostPlan is one host.
type HostPlan struct {
	Name     string
	Capacity topology.Resources
	// Told is what Placement is told that it has, where that is more than there is:
	// then a claim is refused that Placement had promised.
	Told topology.Resources
}

// GuestPlan is one guest.
type GuestPlan struct {
	Host      string
	Flavor    topology.Flavor
	Transient bool
	Paused    bool
	Off       bool
	Autostart bool
	Disk      disk
}

// MovePlan is one migration that is asked for.
type MovePlan struct {
	Guest int
	After *int   // the move that it waits for, from where that has brought the guest; nil for none
	To    string // empty to let candidates decide
	// By is the host whose agent conducts a move that shares nothing; empty for any other
	// move, which its source conducts. Alternates are tried where To refuses.
	By         string
	Alternates []string
	At         time.Duration
	AbortAfter time.Duration
	Options    migration.Options
	Priority   int

	Kind   string           // of migration's types; empty for a live migration
	Flavor *topology.Flavor // that a resize is to
	Ending ending           // of a resize or cold migration
	Later  time.Duration    // how long it waits for the user's word
	Uses   []int            // what he does with the guest meanwhile, a second apart; see used

	Loss, Stopped bool // of an evacuation: what was written may be lost; the guest stays off
}

// ending is what becomes of a move that waits for its user's word.
type ending string

// The endings.
const (
	confirmed ending = "confirm"
	reverted  ending = "revert"
	itself    ending = "window" // nobody says anything, and it confirms itself
	leave     ending = "leave"  // nobody says anything, and it waits
)

// here is the destination of a move that leaves its guest where it is.
const here = "here"

// images says whether a story has an image, from which disks are made anew.
func (s *Story) images() bool {
	return slices.ContainsFunc(s.Moves, func(m MovePlan) bool { return m.Kind == migration.TypeRebuild || m.Loss })
}

// Event is something that happens in a story at a moment, or when a migration comes
// to a phase.
type Event struct {
	At    time.Duration
	Phase string // a phase of drivertest; empty for At
	// InHalves: At is counted from the moment at which the first guest is in post-copy.
	InHalves bool
	Name     string
	Do       func(w *world) error // what a phase is answered with
}

func (s *Story) host(name string) HostPlan {
	for _, h := range s.Hosts {
		if h.Name == name {
			return h
		}
	}
	return HostPlan{}
}

var (
	roomy = topology.Resources{VCPUs: 8, MemoryMB: 6144, DiskGB: 100}
	small = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 256, DiskGB: 1}
	large = topology.Flavor{Name: "large", VCPUs: 2, MemoryMB: 1024, DiskGB: 10}
	// slow takes some seconds for a small guest.
	slow = drivertest.Pace{
		Tick: 200 * time.Millisecond, Setup: 600 * time.Millisecond, Rate: 128 << 20,
		HandOver: 3 * time.Millisecond, Orphan: 4 * time.Second,
	}
)

func hosts(n int) []HostPlan {
	var out []HostPlan
	for i := range n {
		out = append(out, HostPlan{Name: string(rune('a' + i)), Capacity: roomy})
	}
	return out
}

// Stories are those whose points are tried one by one.
func Stories() []*Story {
	one := func(g GuestPlan) []GuestPlan {
		g.Host = "a"
		if g.Flavor.VCPUs == 0 {
			g.Flavor = small
		}
		return []GuestPlan{g}
	}
	move := func(to string) []MovePlan { return []MovePlan{{To: to, At: time.Second}} }
	full := hosts(3)
	full[1].Capacity, full[1].Told = topology.Resources{VCPUs: 0, MemoryMB: 6144, DiskGB: 100}, roomy
	tight := hosts(2)
	tight[1] = full[1]
	stories := []*Story{
		{Name: "named", Hosts: hosts(2), Guests: one(GuestPlan{}), Moves: move("b"), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "chosen", Hosts: hosts(2), Sharing: true, Guests: one(GuestPlan{}), Moves: move(""), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "paused by its user", Hosts: hosts(2), Guests: one(GuestPlan{Paused: true}), Moves: move("b"), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "transient", Hosts: hosts(2), Guests: one(GuestPlan{Transient: true}), Moves: move("b"), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "shared disk", Hosts: hosts(2), Sharing: true, Guests: one(GuestPlan{Disk: shared}), Moves: move(""), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "copied disk", Hosts: hosts(2), Guests: one(GuestPlan{Disk: local}), Moves: move("b"), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "second candidate", Hosts: full, Guests: one(GuestPlan{Flavor: large}), Moves: move(""), Pace: slow, Want: migration.OutcomeCompleted},
		{Name: "nobody takes it", Hosts: tight, Guests: one(GuestPlan{Flavor: large}), Moves: move(""), Pace: slow, Want: migration.OutcomeRefused},
		{Name: "aborted", Hosts: hosts(2), Guests: one(GuestPlan{}), Moves: []MovePlan{{To: "b", At: time.Second, AbortAfter: 2500 * time.Millisecond}}, Pace: slow, Want: migration.OutcomeUndone},
		{Name: "stalled", Hosts: hosts(2), Guests: one(GuestPlan{}), Moves: move("b"), Pace: slow, Want: migration.OutcomeUndone,
			Events: []Event{{At: 2500 * time.Millisecond, Name: "cut the data link", Do: func(w *world) error { w.fleet.CutData("a", "b"); return nil }},
				{At: 60 * time.Second, Name: "heal the data link", Do: func(w *world) error { w.fleet.HealData("a", "b"); return nil }}}},
		{Name: "transient guest lost with its host", Hosts: hosts(2), Guests: one(GuestPlan{Transient: true}), Moves: move("b"), Pace: slow, Want: migration.OutcomeUndone,
			Events: []Event{{At: 1700 * time.Millisecond, Name: "the source loses its power", Do: func(w *world) error { w.machines["a"].reboot(5 * time.Second); return nil }}}},
		{Name: "reply to Finish lost", Hosts: hosts(2), Guests: one(GuestPlan{Disk: local}), Moves: move("b"), Pace: slow, Want: migration.OutcomeUndone,
			Events: []Event{{Phase: drivertest.PhaseFinishReply, Name: "the reply is lost", Do: func(*world) error {
				return fault.New(fault.InDoubt, "the reply was lost")
			}}}},
		{Name: "libvirtd dies as the guest leaves", Hosts: hosts(2), Guests: one(GuestPlan{Disk: shared}), Sharing: true, Moves: move("b"), Pace: slow,
			Events: []Event{{Phase: drivertest.PhaseConfirm, Name: "the source's libvirtd dies", Do: func(w *world) error {
				w.later(2*time.Second, "start libvirtd of a", func() { _ = w.machines["a"].fake.StartDaemon() })
				return fault.New(fault.InDoubt, "killed")
			}}}},
		{Name: "aborted while it leaves", Hosts: hosts(2), Guests: one(GuestPlan{}), Moves: []MovePlan{{To: "b", At: time.Second, AbortAfter: 3600 * time.Millisecond}}, Pace: slow},
	}
	stories = append(stories, coldStories()...)
	for _, s := range stories {
		s.Streams = s.Name != "paused by its user" // one by libvirt's own way
	}
	return slices.Concat(stories, apartStories(), savedStories(), unloadedStories(), hostileStories(), evacuationStories(), lostStoreStories(), drainStories(), crowdStories(), postCopyStories())
}

// drawStory makes a story by chance: one of five shares nothing, and of the others one of five
// has a host that dies.
func drawStory(r *rand.Rand, m *Mutant) *Story {
	if m != nil && (m.Drain != nil || m.Drains) {
		return drawDrain(r)
	}
	if m != nil && (m.Unbounded != "" || m.Halves) {
		return drawCrowd(r, m.Halves || r.IntN(2) == 0)
	}
	if m != nil && m.Among != nil {
		all := m.Among()
		return all[r.IntN(len(all))]
	}
	if m != nil && m.Dies {
		return drawEvacuation(r)
	}
	if m != nil && m.Apart || r.IntN(5) == 0 {
		return drawApart(r)
	}
	if m == nil && r.IntN(5) == 0 {
		return drawEvacuation(r)
	}
	n := 2 + r.IntN(3)
	s := &Story{Name: "drawn", Hosts: hosts(n), Sharing: r.IntN(2) == 0, Streams: r.IntN(4) > 0, Pace: slow}
	if r.IntN(3) == 0 {
		s.Pace.Rate = 1 << 30
	}
	if r.IntN(4) == 0 {
		s.Pace.HandOver = 400 * time.Millisecond // a network that is far, or a host that is busy
	}
	guests := 1 + r.IntN(3)
	for i := range guests {
		g := GuestPlan{Host: s.Hosts[r.IntN(n)].Name, Flavor: small, Transient: r.IntN(4) == 0, Paused: r.IntN(5) == 0, Disk: []disk{noDisk, shared, local}[r.IntN(3)]}
		if r.IntN(4) == 0 {
			g.Flavor = large
		}
		m := MovePlan{Guest: i, At: time.Second + time.Duration(r.IntN(4000))*time.Millisecond}
		if r.IntN(2) == 0 {
			for m.To == "" || m.To == g.Host {
				m.To = s.Hosts[r.IntN(n)].Name
			}
		}
		if r.IntN(5) < 2 {
			drawCold(r, s, &m)
		}
		switch r.IntN(8) {
		case 0, 1:
			m.AbortAfter = m.At + time.Duration(r.IntN(6000))*time.Millisecond
		case 2:
			m.AbortAfter = m.At + time.Duration(r.IntN(40))*time.Millisecond // before the stream
		}
		if m.Kind != "" {
			g.Transient, g.Off = false, r.IntN(5) == 0 // a guest without a definition would be gone when it is off
		}
		s.Guests = append(s.Guests, g)
		s.Moves = append(s.Moves, m)
		if first := len(s.Moves) - 1; r.IntN(4) == 0 {
			next := MovePlan{Guest: i, After: &first, At: m.At}
			if !g.Transient && r.IntN(3) == 0 {
				drawCold(r, s, &next)
			}
			s.Moves = append(s.Moves, next)
		}
	}
	if r.IntN(4) == 0 {
		h := &s.Hosts[r.IntN(n)]
		if !slices.ContainsFunc(s.Guests, func(g GuestPlan) bool { return g.Host == h.Name }) {
			h.Told, h.Capacity = h.Capacity, topology.Resources{VCPUs: 1, MemoryMB: 1024, DiskGB: 20}
		}
	}
	s.Name = fmt.Sprintf("%d guests on %d hosts", guests, n)
	return s
}
