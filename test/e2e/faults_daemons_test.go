package e2e

import (
	"os"
	"testing"
	"time"

	"berth/migration"
	"berth/migration/task"
	"berth/test/guest"
)

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
	w.suffer("f9", breakage{what: "destination's disk runs full mid-stream", step: migration.StepStream, bandwidth: slow, want: undone,
		// dd ends when the disk is full, which is what is wanted of it. It stays full until
		// QEMU has met it, however long that one takes to start.
		broken: func(r *round) {
			_, _ = r.to.Exec(r.ctx, "dd", "if=/dev/zero", "of="+images+"/fill", "bs=4k", "status=none")
			r.migration(r.from, r.guest, "is given up", func(m migration.Migration) bool {
				return m.Done() && m.Outcome == migration.OutcomeUndone || m.Phase == task.Undoing || m.Phase == task.Undone
			})
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
