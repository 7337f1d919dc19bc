package libvirt

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
)

var docs = driver.Migration{DestinationURI: "qemu+tls://b/system", DestinationXML: "<live/>", PersistentXML: "<persistent/>"}

func TestOrders_FlagsAndParameters(t *testing.T) {
	const always = migrateLive | migratePeer2Peer | migratePersistDest | migrateChangeProtection | migrateAbortOnError
	base := []Param{{"destination_xml", "<live/>"}, {"persistent_xml", "<persistent/>"}}
	for _, tt := range []struct {
		name   string
		edit   func(*driver.Migration)
		flags  uint32
		params []Param
	}{
		{"nothing asked", func(*driver.Migration) {}, always, nil},
		{"paused", func(m *driver.Migration) { m.Paused = true }, always | migratePaused, nil},
		{"an empty list copies nothing", func(m *driver.Migration) { m.CopyDisks = []string{} }, always, nil},
		{"disks", func(m *driver.Migration) { m.CopyDisks = []string{"vda", "vdb"}; m.DisksURI = "tcp://x" }, always | migrateNonSharedDisk,
			[]Param{{"disks_uri", "tcp://x"}, {"migrate_disks", "vda"}, {"migrate_disks", "vdb"}}},
		{"unsafe", func(m *driver.Migration) { m.Unsafe = true }, always | migrateUnsafe, nil},
		{"tls", func(m *driver.Migration) { m.TLS = true; m.MigrateURI = "tcp://x" }, always | migrateTLS, []Param{{"migrate_uri", "tcp://x"}}},
		{"bandwidth rounds up", func(m *driver.Migration) { m.Bandwidth = 1 }, always, []Param{{"bandwidth", uint64(1)}}},
		{"bandwidth", func(m *driver.Migration) { m.Bandwidth = 20 << 20 }, always, []Param{{"bandwidth", uint64(20)}}},
		{"parallel", func(m *driver.Migration) { m.ParallelConnections = 4 }, always | migrateParallel, []Param{{"parallel.connections", 4}}},
		{"one connection is not parallel", func(m *driver.Migration) { m.ParallelConnections = 1 }, always, nil},
		{"auto-converge with its steps", func(m *driver.Migration) {
			m.AutoConverge, m.Throttle = true, driver.Throttle{Initial: 30, Increment: 15}
		},
			always | migrateAutoConverge, []Param{{"auto_converge.initial", 30}, {"auto_converge.increment", 15}}},
		{"steps without auto-converge", func(m *driver.Migration) { m.Throttle.Initial = 30 }, always, nil},
		{"compression", func(m *driver.Migration) {
			m.Compression = driver.Compression{Methods: []string{"xbzrle", "mt"}, XBZRLECache: 64 << 20, Level: 3, Threads: 4, UnpackThreads: 2}
		}, always | migrateCompressed, []Param{{"compression", "xbzrle"}, {"compression", "mt"}, {"compression.xbzrle.cache", uint64(64 << 20)},
			{"compression.mt.level", 3}, {"compression.mt.threads", 4}, {"compression.mt.dthreads", 2}}},
		{"compression of parallel connections", func(m *driver.Migration) {
			m.ParallelConnections, m.Compression = 2, driver.Compression{Methods: []string{"zstd"}, ZlibLevel: 1, ZstdLevel: 7}
		}, always | migrateParallel | migrateCompressed, []Param{{"parallel.connections", 2}, {"compression", "zstd"},
			{"compression.zlib.level", 1}, {"compression.zstd.level", 7}}},
		{"zero copy", func(m *driver.Migration) { m.ZeroCopy = true }, always | migrateZeroCopy, nil},
		{"writes that wait", func(m *driver.Migration) { m.CopyDisks, m.SynchronousWrites = []string{"vda"}, true },
			always | migrateNonSharedDisk | migrateSynchronousWrites, []Param{{"migrate_disks", "vda"}}},
		{"writes that wait, and no disks", func(m *driver.Migration) { m.SynchronousWrites = true }, always, nil},
		{"zeroes", func(m *driver.Migration) { m.CopyDisks, m.DetectZeroes = []string{"vda", "vdb"}, []string{"vdb"} },
			always | migrateNonSharedDisk, []Param{{"migrate_disks", "vda"}, {"migrate_disks", "vdb"}, {"migrate_disks_detect_zeroes", "vdb"}}},
		{"post-copy", func(m *driver.Migration) { m.PostCopy, m.Bandwidth, m.PostCopyBandwidth = true, 1<<20, 1<<30+1 },
			always | migratePostCopy, []Param{{"bandwidth", uint64(1)}, {"bandwidth.postcopy", uint64(1025)}}},
		{"bandwidth of a post-copy that is not permitted", func(m *driver.Migration) { m.PostCopyBandwidth = 1 << 20 }, always, nil},
		{"available bandwidth is in bytes", func(m *driver.Migration) { m.AvailableSwitchover = 3<<20 + 1 }, always,
			[]Param{{"bandwidth.avail.switchover", uint64(3<<20 + 1)}}},
		{"auto-converge", func(m *driver.Migration) { m.AutoConverge = true }, always | migrateAutoConverge, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := docs
			tt.edit(&m)
			flags, params := orders(m)
			if flags != tt.flags {
				t.Errorf("flags %#x, want %#x", flags, tt.flags)
			}
			if diff := cmp.Diff(append(base[:2:2], tt.params...), params); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
		})
	}
}

// What libvirt's refusal means is decided by what is here afterwards.
func TestMigrate_JudgesByWhatIsLeft(t *testing.T) {
	running := State{1, 1}
	for _, tt := range []struct {
		name  string
		says  error
		after State
		job   int
		kind  fault.Kind
	}{
		{"it worked", nil, State{5, 4}, 0, ""},
		{"aborted", code(errOperationAborted), running, 0, fault.Undone},
		{"refused as unsafe", code(errMigrateUnsafe), running, 0, fault.Undone},
		{"no route to the destination", code(errNoConnect), running, 0, fault.Undone},
		{"its user's pause is kept", code(1), State{3, 1}, 0, fault.Undone},
		{"another job", code(errOperationInvalid), running, 2, fault.Busy},
		{"half handed over", code(1), State{3, 2}, 0, fault.InDoubt},
		{"the guest died", code(1), State{5, 3}, 0, fault.InDoubt},
		{"post-copy failed", code(1), State{3, 13}, 0, fault.InDoubt},
		{"the answer is lost", ErrLost, running, 0, fault.InDoubt},
		{"it was not sent", ErrNotSent, running, 0, fault.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &daemon{state: running}
			d.answer = map[string]func(*scripted) error{"Migrate": func(*scripted) error {
				d.set(func() { d.state, d.job = tt.after, tt.job })
				return tt.says
			}}
			l := drive(t, d)
			if err := l.Migrate(t.Context(), guestUUID, docs); fault.KindOf(err) != tt.kind {
				t.Errorf("Migrate: %v (kind %q), want kind %q", err, fault.KindOf(err), tt.kind)
			}
		})
	}
}

func TestMigrate_RefusesBeforeItBegins(t *testing.T) {
	for _, tt := range []struct {
		name  string
		m     driver.Migration
		state State
		job   int
		look  error
		kind  fault.Kind
	}{
		{"no documents", driver.Migration{DestinationURI: "x"}, State{1, 1}, 0, nil, fault.Invalid},
		{"not running", docs, State{5, 1}, 0, nil, fault.Invalid},
		{"a job in flight", docs, State{1, 1}, 2, nil, fault.Busy},
		{"no domain", docs, State{1, 1}, 0, code(errNoDomain), fault.NotFound},
		{"could not look", docs, State{1, 1}, 0, ErrLost, fault.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &daemon{state: tt.state, job: tt.job, answer: map[string]func(*scripted) error{
				"Migrate": func(*scripted) error { t.Error("it was begun"); return nil },
				"State":   func(*scripted) error { return tt.look },
			}}
			if err := drive(t, d).Migrate(t.Context(), guestUUID, tt.m); !errors.Is(err, tt.kind) {
				t.Errorf("Migrate: %v, want %s", err, tt.kind)
			}
		})
	}
}

func TestMigrate_OutlivesTheControlConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{state: State{1, 1}, answer: map[string]func(*scripted) error{
			"Migrate": func(*scripted) error { time.Sleep(time.Hour); return nil },
			"Create":  hang,
		}}
		l := drive(t, d)
		done := make(chan error, 1)
		go func() { done <- l.Migrate(context.Background(), guestUUID, docs) }()
		synctest.Wait()
		if err := l.Start(t.Context(), guestUUID, false); !errors.Is(err, fault.InDoubt) {
			t.Errorf("Start: %v, want in doubt", err)
		}
		if err := l.Migrate(t.Context(), guestUUID, docs); !errors.Is(err, fault.Busy) {
			t.Errorf("a second Migrate: %v, want busy", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Migrate: %v", err)
		}
	})
}

func TestAbortJob_WithoutAJobSucceeds(t *testing.T) {
	d := &daemon{state: State{1, 1}, answer: map[string]func(*scripted) error{"AbortJob": func(*scripted) error { return code(errOperationInvalid) }}}
	l := drive(t, d)
	if err := l.AbortJob(t.Context(), guestUUID); err != nil {
		t.Errorf("AbortJob: %v", err)
	}
	d.set(func() { d.job = 2 })
	if err := l.AbortJob(t.Context(), guestUUID); !errors.Is(err, fault.Invalid) {
		t.Errorf("AbortJob refused with a job in flight: %v, want invalid", err)
	}
}

func TestJob_UnitsAreBerths(t *testing.T) {
	got, err := jobOf(2, map[string]any{
		"time_elapsed": uint64(1500), "downtime": uint64(20), "setup_time": uint64(3), "memory_total": uint64(100), "memory_processed": uint64(60),
		"memory_remaining": uint64(40), "memory_bps": uint64(7), "memory_dirty_rate": uint64(5), "memory_page_size": uint64(4096),
		"memory_iteration": uint64(2), "disk_total": uint64(9), "disk_processed": uint64(8), "disk_remaining": uint64(1), "disk_bps": uint64(6),
		"auto_converge_throttle": uint64(40), "memory_postcopy_requests": uint64(17),
		"errmsg": "why", "operation": uint64(5),
	})
	want := driver.Job{
		Kind: driver.JobUnbounded, Elapsed: 1500 * time.Millisecond, Downtime: 20 * time.Millisecond, Setup: 3 * time.Millisecond,
		MemoryTotal: 100, MemoryProcessed: 60, MemoryRemaining: 40, MemoryRate: 7, DirtyRate: 20480, Iteration: 2,
		DiskTotal: 9, DiskProcessed: 8, DiskRemaining: 1, DiskRate: 6, Error: "why", Throttle: 40, PageRequests: 17,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("job, %v (-want +got):\n%s", err, diff)
	}
}

func TestCheckCPU_NamesEveryMissingFeature(t *testing.T) {
	const guest = "<domain type='kvm'><name>g</name><uuid>" + guestUUID + "</uuid><memory>1</memory><cpu mode='custom'><model>X</model></cpu></domain>"
	says := "the CPU is incompatible with host CPU: Host CPU does not provide required features: vmx, avx512f"
	d := &daemon{answer: map[string]func(*scripted) error{"CompareCPU": func(*scripted) error { return &Error{Code: errCPUIncompatible, Message: says} }}}
	l := drive(t, d)
	err := l.CheckCPU(t.Context(), guest)
	var missing []string
	for _, r := range fault.ReasonsOf(err) {
		missing = append(missing, r.Want)
	}
	if diff := cmp.Diff([]string{"vmx", "avx512f"}, missing); diff != "" || !errors.Is(err, fault.DoesNotFit) {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	says = "the CPU is incompatible with host CPU"
	if err := l.CheckCPU(t.Context(), guest); len(fault.ReasonsOf(err)) != 1 || !errors.Is(err, fault.DoesNotFit) {
		t.Errorf("without names: %v, want one reason", err)
	}
	if err := l.CheckCPU(t.Context(), "<domain type='kvm'><name>g</name><uuid>"+guestUUID+"</uuid><memory>1</memory><cpu mode='host-passthrough'/></domain>"); err != nil {
		t.Errorf("host-passthrough: %v", err)
	}
}

func TestCapabilities_OfAHostWithAndWithoutKVM(t *testing.T) {
	const xml = `<capabilities><host><uuid>u</uuid><cpu><arch>x86_64</arch><model>Skylake</model><odd x='1'/></cpu></host>
<guest><os_type>hvm</os_type><arch name='i686'><machine>pc-i686</machine><domain type='qemu'/></arch></guest>
<guest><os_type>hvm</os_type><arch name='x86_64'><machine canonical='pc-q35-7.2' maxCpus='288'>q35</machine><machine>pc-i440fx-7.2</machine><domain type='qemu'/>%s</arch></guest></capabilities>`
	for kvm, emulated := range map[string]bool{"<domain type='kvm'><machine>pc-q35-kvm</machine></domain>": false, "": true} {
		n := driver.Node{Hypervisor: "QEMU"}
		if _, err := readHost(&n, fmt.Sprintf(xml, kvm)); err != nil {
			t.Fatal(err)
		}
		want := driver.Node{
			UUID: "u", Hypervisor: "QEMU", Arch: "x86_64", CPUModel: "Skylake", Emulated: emulated,
			Machines: []string{"pc-i440fx-7.2", "pc-q35-7.2", "q35"},
		}
		if !emulated {
			want.Machines = []string{"pc-i440fx-7.2", "pc-q35-7.2", "pc-q35-kvm", "q35"}
		}
		if diff := cmp.Diff(want, n); diff != "" {
			t.Errorf("node (-want +got):\n%s", diff)
		}
	}
	if _, err := readHost(&driver.Node{}, "<capabilities>"); err == nil {
		t.Error("garbage is accepted")
	}
}

func TestAbortJob_FreesAJobFromItsDeadDiskCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{state: State{1, 1}, job: 4, monitor: `{"return":[{"type":"chardev","id":"charmonitor"},` +
			`{"type":"block-node","node-name":"nbd-of-the-guest"},{"type":"block-node","node-name":"migration-disk-of-the-guest"},` +
			`{"type":"migration","node-name":"migration-vdb-storage"},{"node-name":"migration-vda-storage","type":"block-node"}],"id":"libvirt-9"}`}
		var said []string
		l := drive(t, d)
		query, yank := `Monitor {"execute":"query-yank"}`,
			`Monitor {"arguments":{"instances":[{"type":"block-node","node-name":"migration-vda-storage"}]},"execute":"yank"}`
		for _, m := range []string{query, yank} {
			d.set(func() {
				if d.answer == nil {
					d.answer = map[string]func(*scripted) error{}
				}
				d.answer[m] = func(*scripted) error { said = append(said, m); return nil }
			})
		}
		if err := l.AbortJob(t.Context(), guestUUID); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{query, yank}, said); diff != "" {
			t.Errorf("a job that does not end (-want +got):\n%s", diff)
		}
		d.set(func() { d.answer[query] = func(*scripted) error { return code(errOperationInvalid) } })
		if err := l.AbortJob(t.Context(), guestUUID); err != nil {
			t.Errorf("a job whose guest has ended meanwhile: %v", err)
		}
		said = nil
		d.set(func() { d.job = 0 })
		if err := l.AbortJob(t.Context(), guestUUID); err != nil || said != nil {
			t.Errorf("a job that ends: %v, and the monitor was asked %v", err, said)
		}
	})
}
