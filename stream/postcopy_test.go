package stream

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestGate_PostCopyIsTheClaimsToPermit holds every way to prepare and to finish against both
// answers of the claim.
func TestGate_PostCopyIsTheClaimsToPermit(t *testing.T) {
	const tunnel, resume, copied = flagTunnelled, flagPostCopyResume, flagPostCopy
	ways := []int{0, flagPaused, copied, copied | resume, resume, copied | flagPaused, resume | flagPaused, copied | tunnel, flagPaused | tunnel}
	is := func(permitted bool, flags int) way {
		switch {
		case flags == flagPaused:
			return byPause
		case permitted && (flags == copied || flags == copied|resume):
			return byPostCopy
		}
		return unprepared
	}
	for _, permitted := range []bool{false, true} {
		for _, in := range ways {
			g, begun := testGate(), 0
			g.postCopy, g.begun = permitted, func() { begun++ }
			_, err := g.pass(prepareBy(in, "migrate_uri", memoryURI, "destination_xml", guestXML))
			want := is(permitted, in)
			if (err == nil) != (want != unprepared) || (begun == 1) != (want == byPostCopy) {
				t.Errorf("permitted %v: prepare by %#x: %v, begun %d; want way %d", permitted, in, err, begun, want)
			}
			if err != nil {
				continue
			}
			for _, out := range ways {
				f := *g
				_, err := f.pass(finishBy(out, "g"))
				if (err == nil) != (is(permitted, out) == want) {
					t.Errorf("permitted %v: prepared by %#x, finished by %#x: %v", permitted, in, out, err)
				}
			}
		}
	}
}

// libvirtTalks opens a connection of control and prepares the guest by it.
func (p *pair) libvirtTalks(flags int) (out, in *net.UnixConn) {
	p.t.Helper()
	out = p.dial(p.src.Paths(testID).Control)
	in = p.accept(p.libvirt)
	text := string(slices.Concat(open("qemu:///system"), prepareBy(flags, "migrate_uri", p.dst.Paths(testID).MigrateURI(), "destination_xml", guestXML)))
	p.says(out, in, text)
	return out, in
}

func (p *pair) finishes(out, in *net.UnixConn, flags int) {
	p.t.Helper()
	p.says(out, in, string(finishBy(flags, "g")))
}

// TestStream_PostCopyBreaksAndGoesOn plays what two libvirts do in one session: a guest is sent
// paused and stays, is sent again by post-copy, loses its connections, and goes on by new ones.
func TestStream_PostCopyBreaksAndGoesOn(t *testing.T) {
	p := newPair(t, inside(t))
	p.in.PostCopy = true
	p.open()

	// The first job, which is ended.
	control, libvirt := p.libvirtTalks(flagPaused)
	memory := p.memory()
	out, in := p.connected(memory)
	p.says(out, in, "pages")
	for _, c := range []*net.UnixConn{out, in, control, libvirt} {
		c.Close()
	}
	memory.Close() // and QEMU there with it
	p.until(p.dst, "closed", func(st Status) bool { return st.Open == 0 })
	p.until(p.src, "closed", func(st Status) bool { return st.Open == 0 })

	// The second, by a process of its own at the source.
	again := func() {
		t.Helper()
		if err := p.src.Close(t.Context(), testID); err != nil {
			t.Fatal(err)
		}
		o := p.out
		o.PostCopy = true
		if _, err := p.src.Open(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	again()
	control, libvirt = p.libvirtTalks(flagPostCopy)
	memory = p.memory()
	out, in = p.connected(memory)
	p.says(out, in, "pages")
	p.says(in, out, "asks for a page")
	if st := p.status(p.src); !st.PostCopy || st.Silent > 10*time.Second {
		t.Errorf("the source's process: %+v", st)
	}

	// The agents are gone for longer than the lease, and then the source's connections too.
	for _, m := range []*Manager{p.src, p.dst} {
		if _, err := m.Renew(t.Context(), testID, time.Nanosecond); err != nil {
			t.Fatal(err)
		}
	}
	again()
	for _, c := range []*net.UnixConn{out, control, libvirt, in} {
		p.ends(c)
	}
	p.until(p.dst, "closed", func(st Status) bool { return st.Open == 0 })
	st := p.status(p.dst)
	if st.Lease != 0 || !st.PostCopy {
		t.Fatalf("the destination's process: %+v", st)
	}

	control, libvirt = p.libvirtTalks(flagPostCopy | flagPostCopyResume)
	out, in = p.connected(memory)
	p.says(out, in, "the other pages")
	p.says(in, out, "asks for another page")
	p.finishes(control, libvirt, flagPostCopy|flagPostCopyResume)
}

// TestStream_ARecoveryEndsWhatIsOpenStill is a network that swallowed everything: the
// destination has not noticed, and QEMU there holds on to its socket.
func TestStream_ARecoveryEndsWhatIsOpenStill(t *testing.T) {
	p := newPair(t, inside(t))
	p.in.PostCopy = true
	p.open()
	_, libvirt := p.libvirtTalks(flagPostCopy)
	memory := p.memory()
	out, in := p.connected(memory)
	p.says(out, in, "pages")
	p.libvirtTalks(flagPostCopy | flagPostCopyResume)
	p.ends(in)
	p.ends(libvirt)
	out, in = p.connected(memory)
	p.says(out, in, "the other pages")
}

// TestStream_NoSecondControlEndsAnythingBefore post-copy, whatever the order permits.
func TestStream_NoSecondControlEndsAnythingBefore(t *testing.T) {
	p := newPair(t, inside(t))
	p.in.PostCopy = true
	p.open()
	control, libvirt := p.libvirtTalks(flagPaused)
	out, in := p.connected(p.memory())
	p.dial(p.src.Paths(testID).Control)
	p.accept(p.libvirt)
	p.says(out, in, "pages")
	p.finishes(control, libvirt, flagPaused)
}

func TestDestination_LetsNoGuestRunWithoutItsClaim(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	out := p.dial(p.src.Paths(testID).Control)
	in := p.accept(p.libvirt)
	if _, err := out.Write(prepareBy(flagPostCopy, "migrate_uri", p.dst.Paths(testID).MigrateURI(), "destination_xml", guestXML)); err != nil {
		t.Fatal(err)
	}
	// It has been sent some of the call, and never all of it.
	p.ends(out)
	if got, err := io.ReadAll(in); err != nil || strings.Contains(string(got), "</domain>") {
		t.Errorf("libvirt got %d bytes of it, %v", len(got), err)
	}
	if st := p.status(p.dst); st.PostCopy {
		t.Errorf("its process says %+v", st)
	}
}

// TestProcess_GivesADeadConnectionUpSoonerInPostCopy looks at what the kernel was told.
func TestProcess_GivesADeadConnectionUpSoonerInPostCopy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	timeout := func() (ms int) {
		t.Helper()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if cerr := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		return ms
	}
	p := &process{o: Order{DeadAfter: time.Hour}, lease: time.Minute, most: 100, boot: func() time.Duration { return time.Hour }, cancel: func() {}}
	for i := range p.places {
		p.places[i].links = map[*link]struct{}{}
	}
	if err := tend(c.(*net.TCPConn), p.deadAfter()); err != nil {
		t.Fatal(err)
	}
	p.places[placeOf(Memory)].links[&link{batch: newBatch(c)}] = struct{}{}
	if got, want := timeout(), int(time.Hour.Milliseconds()); got != want {
		t.Errorf("before: %d ms, want %d", got, want)
	}
	p.postCopy()
	if got, want := timeout(), int(postCopyDeadAfter.Milliseconds()); got != want || p.deadAfter() != postCopyDeadAfter {
		t.Errorf("in post-copy: %d ms, and of new ones %s, want %d", got, p.deadAfter(), want)
	}
	if p.expire(); p.over != "" {
		t.Errorf("in post-copy it ended: %s", p.over)
	}
}
