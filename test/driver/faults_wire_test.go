package driver

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"berth/driver/libvirt/rpc"
	"berth/internal/fault"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// How the driver must do. patience is what a call may take beyond its deadline,
// or beyond a fault that ends its connection: what the driver itself needs is
// nothing, the rest is for machines that are busy. recovery is how long it may
// take until the driver is well again once the fault is over: its own bound is
// PingInterval + PingTimeout + CallTimeout + ReconnectMax, 7.4 s here.
const (
	deadline = 100 * time.Millisecond
	patience = 20 * time.Second
	recovery = time.Minute
)

// wireFault is something that goes wrong with one packet of a call.
type wireFault struct {
	what   string
	kind   rpcproxy.Kind
	action rpcproxy.Action
	// late: nothing ends the connection, so the call ends at its deadline.
	late bool
	// usual: the verb answers as ever. early: it may, where the answer is there
	// before the fault.
	usual, early bool
	// lies: the answer may make sense by chance, and be wrong.
	lies bool
}

func wireFaults() []wireFault {
	const call, reply = rpcproxy.Call, rpcproxy.Reply
	out := []wireFault{
		{what: "call dropped", kind: call, action: rpcproxy.Drop, late: true},
		{what: "connection cut before the call", kind: call, action: rpcproxy.CutInstead},
		{what: "connection cut after the call", kind: call, action: rpcproxy.CutAfter, early: true},
		{what: "call cut in the middle", kind: call, action: rpcproxy.Truncate(30)},
		{what: "call of another program", kind: call, action: rpcproxy.Set(rpcproxy.Program, 0x12345678), lies: true},
		{what: "call of length 5", kind: call, action: rpcproxy.Set(rpcproxy.Length, 5), lies: true},
		{what: "garbage instead of the call", kind: call, action: rpcproxy.Garbage(4096, 2), lies: true},
		{what: "reply dropped", kind: reply, action: rpcproxy.Drop, late: true},
		{what: "reply after the deadline", kind: reply, action: rpcproxy.Delay(2 * deadline), late: true},
		{what: "reply late", kind: reply, action: rpcproxy.Delay(50 * time.Millisecond), usual: true},
		{what: "connection cut instead of the reply", kind: reply, action: rpcproxy.CutInstead},
		{what: "connection cut after the reply", kind: reply, action: rpcproxy.CutAfter, early: true},
		{what: "reply cut in its head", kind: reply, action: rpcproxy.Truncate(10)},
		{what: "reply cut in its last byte", kind: reply, action: rpcproxy.Action{Cut: true, Change: func(p rpcproxy.Packet) []byte { return p[:len(p)-1] }}},
		{what: "reply twice", kind: reply, action: rpcproxy.Twice, early: true},
		{what: "reply of length 5", kind: reply, action: rpcproxy.Set(rpcproxy.Length, 5)},
		{what: "reply of length 2 GiB", kind: reply, action: rpcproxy.Set(rpcproxy.Length, 1<<31-1)},
		{what: "reply shorter than its length", kind: reply, late: true, action: rpcproxy.Change(func(p rpcproxy.Packet) []byte {
			p[3] += 4 // never carries: lengths are multiples of four, and none here ends in 252
			return p
		})},
		{what: "reply of another program", kind: reply, action: rpcproxy.Set(rpcproxy.Program, 0x12345678)},
		{what: "reply of another version", kind: reply, action: rpcproxy.Set(rpcproxy.Version, 2)},
		{what: "reply of another procedure", kind: reply, action: rpcproxy.Set(rpcproxy.Procedure, 1)},
		{what: "reply of type 7", kind: reply, action: rpcproxy.Set(rpcproxy.Type, 7)},
		{what: "reply of type event", kind: reply, action: rpcproxy.Set(rpcproxy.Type, 2)},
		{what: "reply with another serial", kind: reply, action: rpcproxy.Set(rpcproxy.Serial, 1<<30)},
		{what: "reply with status 7", kind: reply, action: rpcproxy.Set(rpcproxy.Status, 7)},
		{what: "reply with status continue", kind: reply, action: rpcproxy.Set(rpcproxy.Status, 2)},
		{what: "reply turned into an error", kind: reply, action: rpcproxy.Set(rpcproxy.Status, 1), lies: true},
		{what: "garbage of 64 KiB", kind: reply, action: rpcproxy.Garbage(64<<10, 1)},
	}
	for _, n := range []int{0, 1, 2, 5} {
		for _, value := range []uint32{1<<32 - 1, 1<<31 - 1} {
			out = append(out, wireFault{what: "reply with a huge number", kind: reply, action: rpcproxy.Payload(n, value), lies: true})
		}
	}
	return append(out, wireFault{what: "reply shortened by a word", kind: reply, action: rpcproxy.Shorten(4), lies: true})
}

var rpcBinding = binding{rpc.Dial, func(string) string { return "test:///default" }, time.Minute, 0, 0}

func TestRPC_EveryVerbUnderEveryFaultOfTheWire(t *testing.T) { rpcBinding.faultsOfTheWire(t) }

func (n binding) faultsOfTheWire(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	table := newTable(t)
	t.Run("connect", func(t *testing.T) { // a library may keep files of its own from now on
		b := n.bench(t, h.LibvirtSocket())
		b.ready()
		b.settled()
	})
	files := descriptors(t)
	n.everyVerb(t, h.LibvirtSocket(), func(b *bench) {
		for i, f := range wireFaults() {
			if n.share > 0 && (i+b.nth)%n.share > 0 && !all() {
				continue
			}
			// At that call of the verb which changes something, and what is a matter of
			// reading at each in turn.
			s := b.steps[i%len(b.steps)]
			if slices.Contains(b.steps, b.v.order) && !f.lies {
				s = b.v.order
			}
			b.suffer(table, f, s)
		}
	})
	awaitDescriptors(t, files)
}

// suffer calls the verb once while a fault befalls one of its calls.
func (b *bench) suffer(table *table, f wireFault, s step) {
	b.Helper()
	limit := b.n.patience
	switch {
	case f.late:
		limit = deadline
	case f.usual:
		limit = time.Minute
	}
	var err error
	var took time.Duration
	for try := 0; ; try++ {
		b.ready()
		b.settled() // connected
		r := b.p.Add(s.match(f.kind), f.action)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		began := time.Now()
		err = b.v.call(ctx, b.d, b.id)
		took = time.Since(began)
		cancel()
		r.Remove()
		if r.Count() > 0 {
			break
		}
		// Too busy a machine: the deadline was over before the call was made. Or the
		// native library remembers the answer; then the fault befalls another call.
		if try >= 2 {
			s = b.steps[try%len(b.steps)]
		}
		if try == 6 {
			b.Fatalf("%s at procedure %d: nothing was met: %v", f.what, s.procedure, err)
		}
	}
	bound := patience
	if f.late {
		bound += limit
	}
	if took > bound {
		b.Errorf("%s at procedure %d: it took %v, want no more than %v", f.what, s.procedure, took, bound)
	}
	want := b.allowed(f, s)
	if got := kindOf(err); !slices.Contains(want, got) {
		b.Errorf("%s at procedure %d: %s (%v), want %v", f.what, s.procedure, got, err, want)
	}
	table.add(row{f.what, b.v.name, kindOf(err), took, b.settled()})
}

// allowed are the honest answers.
func (b *bench) allowed(f wireFault, s step) []string {
	var want []string
	switch {
	case f.usual:
		return []string{kindOf(b.usual)}
	case !b.v.changes():
		want = []string{string(fault.Unavailable)}
	case s == b.v.order:
		want = []string{string(fault.InDoubt)}
	default: // a look before or after the order
		want = []string{string(fault.InDoubt), string(fault.Unavailable)}
	}
	if f.early {
		want = append(want, kindOf(b.usual))
		if b.v.again() {
			want = append(want, string(fault.Unavailable))
		}
	}
	if f.lies {
		want = append(want, kindOf(b.usual), kindOf(nil), string(fault.Internal), string(fault.Invalid), string(fault.Unavailable))
	}
	return want
}

// descriptors counts this process's open files.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// awaitDescriptors requires that no more files are open than there were; what a
// closed connection leaves ends within moments.
func awaitDescriptors(t *testing.T, before int) {
	t.Helper()
	ctx := within(t, 2*time.Minute)
	for descriptors(t) > before {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Errorf("%d files are open, were %d", descriptors(t), before)
			return
		}
	}
}

// Answers changed at random must neither end the process, nor hang a call, nor
// leave the driver other than well afterwards. BERTH_FAULTS=all takes longer.
func TestRPC_ScrambledAnswersHarmNobody(t *testing.T) { rpcBinding.scrambledAnswers(t) }

func (n binding) scrambledAnswers(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	rounds := 25
	if all() {
		rounds = 2000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	n.everyVerb(t, h.LibvirtSocket(), func(b *bench) {
		r := rand.New(rand.NewPCG(seed, uint64(len(b.v.name))))
		for range rounds {
			b.ready()
			rule := b.p.Add(rpcproxy.Match{Kind: rpcproxy.Reply, Times: rpcproxy.Always, If: func(rpcproxy.Packet) bool { return r.IntN(2) == 0 }}, rpcproxy.Scramble(r))
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
			err := b.v.call(ctx, b.d, b.id)
			cancel()
			rule.Remove()
			if took := time.Since(began); took > patience {
				b.Errorf("it took %v: %v", took, err)
			}
		}
		b.ready()
		b.settled()
	})
}
