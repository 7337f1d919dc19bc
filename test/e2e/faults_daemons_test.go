package e2e

import (
	"os"
	"testing"
	"time"

	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

func libvirtdKilledOrHangs(w *world, name string) {
	list := []breakage{
		{what: "kill -9 destination libvirtd mid-stream", broken: killLibvirtd(destination), healed: startLibvirtd(destination), down: time.Second, want: undone},
		{what: "kill -9 source libvirtd mid-stream", broken: killLibvirtd(source), healed: startLibvirtd(source), down: time.Second, want: undone},
		{what: "SIGSTOP destination libvirtd mid-stream, 12 s", broken: stopLibvirtd(destination), healed: continueLibvirtd(destination), down: 12 * time.Second, rare: true},
		{what: "SIGSTOP source libvirtd mid-stream, 12 s", broken: stopLibvirtd(source), healed: continueLibvirtd(source), down: 12 * time.Second, rare: true},
		{what: "SIGSTOP source libvirtd mid-stream, 3 s", broken: stopLibvirtd(source), healed: continueLibvirtd(source), down: 3 * time.Second, rare: true},
		{what: "kill -9 destination QEMU mid-stream", broken: killQEMU(destination), want: undone},
	}
	for i := range list {
		list[i].bytes, list[i].bandwidth = true, slow
	}
	for _, step := range []string{migration.StepCommit, migration.StepAcceptToken, migration.StepFinishDestination, migration.StepCleanUpSource} {
		b := breakage{what: "kill -9 source libvirtd at " + step, step: step, broken: killLibvirtd(source), healed: startLibvirtd(source),
			down: 300 * time.Millisecond, want: completed, rare: step != migration.StepCommit}
		list = append(list, b)
		b.what, b.broken, b.healed, b.rare = "kill -9 destination libvirtd at "+step, killLibvirtd(destination), startLibvirtd(destination), step != migration.StepAcceptToken
		list = append(list, b)
	}
	w.sufferAll(name, list)
}

func managementLinkCut(w *world, name string) {
	link := func(of func(*round) *lab.Host, b breakage) breakage {
		b.broken, b.healed = cut(lab.Mgmt, of), heal(lab.Mgmt, of)
		return b
	}
	w.sufferAll(name, []breakage{
		link(destination, breakage{what: "management link cut mid-stream, 12 s", bytes: true, bandwidth: slow, down: 12 * time.Second}),
		link(destination, breakage{what: "management link cut mid-stream, 3 s", bytes: true, bandwidth: slow, down: 3 * time.Second, want: completed, rare: true}),
		link(source, breakage{what: "source's management link cut mid-stream, 12 s", bytes: true, bandwidth: slow, down: 12 * time.Second, rare: true}),
		{what: "both links cut mid-stream, 10 s", bytes: true, bandwidth: slow, down: 10 * time.Second, rare: true,
			broken: func(r *round) { cut(lab.Mgmt, destination)(r); cut(lab.Mig, destination)(r) },
			healed: func(r *round) { heal(lab.Mgmt, destination)(r); heal(lab.Mig, destination)(r) }},
		link(destination, breakage{what: "management link cut at commit, 4 s", step: migration.StepCommit, down: 4 * time.Second, want: completed}),
		link(destination, breakage{what: "management link cut at accept_token, 12 s", step: migration.StepAcceptToken, down: 12 * time.Second, want: completed, rare: true}),
	})
}

func sourceQEMUKilled(w *world, name string) {
	for _, b := range []breakage{
		{what: "kill -9 source QEMU mid-stream", broken: killQEMU(source)},
		{what: "kill -9 source QEMU and agent mid-stream", rare: true,
			broken: func(r *round) { killAgent(source)(r); killQEMU(source)(r) }, healed: startAgent(source)},
		{what: "kill -9 source QEMU and libvirtd mid-stream", rare: true,
			broken: func(r *round) { killLibvirtd(source)(r); killQEMU(source)(r) }, healed: startLibvirtd(source)},
	} {
		here, _ := w.where(name)
		b.bytes, b.bandwidth, b.off, b.want = true, slow, "shut off (crashed)", undone
		w.sufferAll(name, []breakage{b})
		if !b.rare || all() {
			w.again(here, name)
		}
	}
}

const proxyPort = "16599"

// With libvirt's own hand-over each of these leaves two running copies, or none.
func TestFaults_LostFinishReply(t *testing.T) {
	w := faults(t, "f8", map[string]string{"host-b": "[libvirt]\npeer_uri = \"qemu+tcp://10.77.0.1:" + proxyPort + "/system\"\n"})
	p := between(t, w.a, w.b, w.a.MgmtIP()+":"+proxyPort)
	for _, b := range []breakage{
		{what: "Finish's reply lost"},
		{what: "Finish's reply lost, source agent killed", broken: killAgent(source), healed: startAgent(source), rare: true},
		{what: "Finish's reply never comes, source libvirtd killed", broken: killLibvirtd(source), healed: startLibvirtd(source)},
		{what: "Finish's reply lost, destination libvirtd killed", broken: killLibvirtd(destination), healed: startLibvirtd(destination), rare: true},
		{what: "Finish's reply never comes, source libvirtd and agent killed",
			broken: func(r *round) { killAgent(source)(r); killLibvirtd(source)(r) },
			healed: func(r *round) { startLibvirtd(source)(r); startAgent(source)(r) }},
	} {
		if b.rare && !all() {
			continue
		}
		met, release := p.HoldReply(rpcproxy.Finish3Params)
		inner := b.broken
		b.want = undone
		b.broken = func(r *round) {
			select {
			case <-met:
			case <-time.After(time.Minute):
				r.Fatal("no Finish passed the proxy")
			}
			if inner != nil {
				inner(r)
			}
			close(release)
		}
		w.suffer("f8", b)
	}
	// The lost halves cost nothing: the guest still moves.
	w.suffer("f8", breakage{what: "nothing", want: completed, broken: func(*round) {}})
}

func TestFaults_DestinationDiskFull(t *testing.T) {
	w := own(t, nil)
	o := guest.Options{Name: "f9", Dirty: 4, Rate: 16}
	w.xml(w.a, &o)
	// Data behind what the guest writes, so that the copy needs room.
	if _, err := w.a.Exec(w.ctx, "qemu-io", "-c", "write -q -P 171 8M 20M", o.Disks[0].Path); err != nil {
		t.Fatal(err)
	}
	w.berth(w.a, "instance", "create", "f9", "--flavor", "small", "--xml", "/var/lib/libvirt/f9.xml", "--start")
	w.beats(w.a, "f9", 3)
	t.Cleanup(func() { w.remove("f9") })
	if err := os.MkdirAll(w.b.Path(images), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := w.b.Exec(w.ctx, "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", images); err != nil {
		t.Fatal(err)
	}
	w.suffer("f9", breakage{what: "destination's disk runs full mid-stream", step: migration.StepStream, bandwidth: slow, want: undone, down: 2 * time.Second,
		// dd ends when the disk is full, which is what is wanted of it.
		broken: func(r *round) {
			_, _ = r.to.Exec(r.ctx, "dd", "if=/dev/zero", "of="+images+"/fill", "bs=4k", "status=none")
		},
		healed: func(r *round) {
			_, err := r.to.Exec(r.ctx, "rm", images+"/fill")
			r.must("free the disk", err)
		}})
	if left, err := w.b.Exec(w.ctx, "ls", "-A", images); err != nil || left != "" {
		t.Errorf("left in the full folder: %q %v", left, err)
	}
	if _, err := w.b.Exec(w.ctx, "umount", images); err != nil {
		t.Fatal(err)
	}
	w.suffer("f9", breakage{what: "room made", broken: func(*round) {}, want: completed})
}

func TestFaults_JournalDiskFull(t *testing.T) {
	w := faults(t, "f10", nil)
	const state = "/var/lib/berth"
	if err := w.Agent("host-a").Stop(w.ctx); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"cp", "-a", state, "/run/state"},
		{"mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", state},
		{"cp", "-a", "/run/state/.", state},
	} {
		if _, err := w.a.Exec(w.ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	startAgent(source)(&round{world: w, from: w.a})
	// dd ends when the disk is full, which is what is wanted of it.
	fill := func(r *round) {
		_, _ = w.a.Exec(w.ctx, "dd", "if=/dev/zero", "of="+state+"/fill", "bs=4k", "status=none")
	}
	free := func(r *round) {
		_, err := w.a.Exec(w.ctx, "rm", state+"/fill")
		r.must("free the disk", err)
	}
	b := breakage{bytes: true, bandwidth: "60MiB/s", broken: fill, healed: free, down: 3 * time.Second, want: completed}
	b.what = "state disk of the source full from mid-stream to after it"
	w.suffer("f10", b)
	b.what, b.rare = "state disk of the destination full from mid-stream to after it", true
	w.sufferAll("f10", []breakage{b})
	if here, _ := w.where("f10"); here == w.a {
		b.what = "state disk of the source full, its agent killed"
		b.broken = func(r *round) { fill(r); killAgent(source)(r) }
		b.healed = func(r *round) { free(r); startAgent(source)(r) }
		w.sufferAll("f10", []breakage{b})
	}
}
