package libvirt

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
)

// What is set on the running QEMU outlives the job, so the next one would have it too.
func TestMigrate_LeavesNoBoundsBehind(t *testing.T) {
	for _, tt := range []struct {
		name      string
		was, want bounds // before, and of the job
		edit      func(*driver.Migration)
		job       func(l *Driver) error // what is done while it is in flight
		says      error
		left      bounds
		sets      int
		kind      fault.Kind
	}{
		{name: "nothing asked, nothing set", was: usual, want: usual, says: code(errOperationAborted), left: usual, kind: fault.Undone},
		{name: "a downtime, and the guest stays", was: bounds{450, 100}, want: bounds{500, anySpeed},
			edit: func(m *driver.Migration) { m.MaxDowntime = 500 * time.Millisecond }, says: code(errOperationAborted), left: bounds{450, 100}, sets: 4, kind: fault.Undone},
		{name: "one millisecond before post-copy", was: usual, want: bounds{1, anySpeed},
			edit: func(m *driver.Migration) { m.PostCopy, m.MaxDowntime, m.Bandwidth = true, time.Millisecond, 1<<20 },
			says: code(errOperationAborted), left: usual, sets: 2, kind: fault.Undone},
		{name: "what somebody left is no bound of this job", was: bounds{1, 1}, want: usual, left: usual, sets: 2},
		{name: "tuned on the way, and the guest stays", was: usual, want: usual, says: code(errOperationAborted), left: usual, sets: 4, kind: fault.Undone,
			job: func(l *Driver) error {
				return errors.Join(l.SetMaxDowntime(context.Background(), guestUUID, time.Minute), l.SetBandwidth(context.Background(), guestUUID, 5<<20))
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &daemon{state: State{1, 1}, downtime: tt.was.downtime, speed: tt.was.speed}
			var l *Driver
			d.answer = map[string]func(*scripted) error{"Migrate": func(*scripted) error {
				var during bounds
				d.set(func() { during, d.job = bounds{d.downtime, d.speed}, 2 })
				if during != tt.want {
					t.Errorf("bounds of the job are %+v, want %+v", during, tt.want)
				}
				if tt.job != nil {
					if err := tt.job(l); err != nil {
						t.Error(err)
					}
				}
				d.set(func() { d.job = 0 })
				return tt.says
			}}
			l = drive(t, d)
			m := docs
			if tt.edit != nil {
				tt.edit(&m)
			}
			if err := l.Migrate(t.Context(), guestUUID, m); fault.KindOf(err) != tt.kind {
				t.Errorf("Migrate: %v, want kind %q", err, tt.kind)
			}
			d.set(func() {
				if got := (bounds{d.downtime, d.speed}); got != tt.left || d.bounds != tt.sets {
					t.Errorf("bounds are %+v after %d changes, want %+v after %d", got, d.bounds, tt.left, tt.sets)
				}
			})
		})
	}
}

// Whoever began it would have put the bounds back, and is gone.
func TestAbortJob_UnbindsWhatNobodyWaitsFor(t *testing.T) {
	d := &daemon{state: State{1, 1}, job: 2, downtime: 1, speed: 3}
	d.answer = map[string]func(*scripted) error{"AbortJob": func(*scripted) error { d.set(func() { d.job = 0 }); return nil }}
	if err := drive(t, d).AbortJob(t.Context(), guestUUID); err != nil {
		t.Fatal(err)
	}
	d.set(func() {
		if got := (bounds{d.downtime, d.speed}); got != usual {
			t.Errorf("bounds are %+v, want the usual", got)
		}
	})
	d.set(func() { d.job, d.answer["MaxSpeed"] = 2, func(*scripted) error { return ErrLost } })
	if err := drive(t, d).AbortJob(t.Context(), guestUUID); err != nil {
		t.Errorf("the job has ended, and its bounds could not be read: %v", err)
	}
}

func TestSetBandwidth_BoundsWhatGoesOn(t *testing.T) {
	d := &daemon{state: State{1, 1}, job: 2}
	l := drive(t, d)
	for _, tt := range []struct {
		state           State
		job             int
		bytes           uint64
		speed, postCopy uint64
	}{
		{State{1, 1}, 2, 5 << 20, 5, 0},
		{State{1, 1}, 2, 0, anySpeed, 0},
		{State{3, 12}, 2, 7<<20 + 1, anySpeed, 8}, // paused (post-copy)
		{State{3, 12}, 2, 0, anySpeed, 0},
		{State{1, 1}, 0, 5 << 20, anySpeed, 0}, // no job: it would stay
	} {
		d.set(func() { d.state, d.job = tt.state, tt.job })
		if err := l.SetBandwidth(t.Context(), guestUUID, tt.bytes); err != nil {
			t.Errorf("%+v: %v", tt, err)
		}
		d.set(func() {
			if d.speed != tt.speed || d.postCopySpeed != tt.postCopy {
				t.Errorf("%+v: %d and %d MiB a second", tt, d.speed, d.postCopySpeed)
			}
		})
	}
}

func TestMigrationOptions_SaySinceWhenAndUntil(t *testing.T) {
	names := func(libvirt, qemu driver.Version) string {
		return strings.Join(slices.Sorted(maps.Keys(migrationOptions(libvirt, qemu))), " ")
	}
	for _, tt := range []struct {
		libvirt, qemu driver.Version
		lacks         string
	}{
		{12_002_000, 9_000_000, ""},
		{12_002_000, 10_000_002, "compression.mt compression_mt_dthreads compression_mt_level compression_mt_threads"},
		{9_000_000, 7_002_022, "available_switchover_bandwidth_bytes compression.zlib compression.zstd compression_zlib_level compression_zstd_level migrate_disks_detect_zeroes"},
		{10_009_000, 8_001_000, "available_switchover_bandwidth_bytes"},
		{8_004_000, 7_000_000, "available_switchover_bandwidth_bytes compression.zlib compression.zstd compression_zlib_level compression_zstd_level migrate_disks_detect_zeroes zero_copy"},
	} {
		if got := names(tt.libvirt, tt.qemu); got != tt.lacks {
			t.Errorf("libvirt %s with QEMU %s lacks %q, want %q", tt.libvirt, tt.qemu, got, tt.lacks)
		}
	}
	if why := migrationOptions(8_004_000, 9_000_000)["zero_copy"]; why != "libvirt has it since 8.5.0, and this is 8.4.0" {
		t.Errorf("zero_copy: %q", why)
	}
}

// Of each option that a daemon lacks one reason.
func TestRefuse_NamesEachOptionThatIsNotThere(t *testing.T) {
	m := docs
	m.CopyDisks, m.DetectZeroes, m.Compression.Methods, m.AutoConverge = []string{"vda"}, []string{"vda"}, []string{"zstd", "xbzrle"}, true
	m.Throttle = driver.Throttle{Initial: 20, Increment: 10}
	err := refuse(request{verb: "migrate"}, m, 9_000_000, 10_000_002)
	var named []string
	for _, r := range fault.ReasonsOf(err) {
		named = append(named, r.Want)
	}
	if diff := cmp.Diff([]string{"compression.zstd", "migrate_disks_detect_zeroes"}, named); diff != "" || !errors.Is(err, fault.Invalid) {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestFailPostCopy_WaitsUntilThisSideHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		active, failed := State{3, 12}, State{3, 13}
		d := &daemon{state: active}
		said := 0
		d.answer = map[string]func(*scripted) error{"AbortJob post-copy": func(*scripted) error {
			said++
			go func() { time.Sleep(3 * time.Second); d.set(func() { d.state = failed }) }()
			return nil
		}}
		l := drive(t, d)
		began := time.Now()
		if err := l.FailPostCopy(withIn(t, 5*time.Second), guestUUID); err != nil || time.Since(began) < 3*time.Second {
			t.Errorf("FailPostCopy: %v after %v, want it to wait for 3 s", err, time.Since(began))
		}
		if err := l.FailPostCopy(t.Context(), guestUUID); err != nil || said != 1 {
			t.Errorf("FailPostCopy of one that has failed: %v, after %d orders", err, said)
		}
		// It never does.
		d.set(func() { d.state, d.answer["AbortJob post-copy"] = active, nil })
		if err := l.FailPostCopy(withIn(t, 5*time.Second), guestUUID); !errors.Is(err, fault.InDoubt) {
			t.Errorf("FailPostCopy that nothing comes of: %v, want in doubt", err)
		}
		d.set(func() { d.answer["AbortJob post-copy"] = func(*scripted) error { return code(errOperationInvalid) } })
		if err := l.FailPostCopy(t.Context(), guestUUID); !errors.Is(err, fault.Invalid) {
			t.Errorf("FailPostCopy that libvirt refuses: %v, want invalid", err)
		}
		d.set(func() { d.state = State{1, 1} })
		if err := l.FailPostCopy(t.Context(), guestUUID); !errors.Is(err, fault.Invalid) {
			t.Errorf("FailPostCopy of what runs: %v, want invalid", err)
		}
	})
}

func TestRecoverPostCopy_JudgesByWhatIsLeft(t *testing.T) {
	failed := State{3, 13}
	for _, tt := range []struct {
		name  string
		state State
		job   int
		says  error
		after State
		kind  fault.Kind
	}{
		{"it goes on to its end", failed, 2, nil, State{5, 4}, ""},
		{"it breaks again", failed, 2, code(errOperationFailed), failed, fault.InDoubt},
		{"the other side has not noticed", failed, 2, code(errOperationInvalid), failed, fault.InDoubt},
		{"the answer is lost", failed, 2, ErrLost, failed, fault.InDoubt},
		{"it is in flight", State{3, 12}, 2, nil, State{3, 12}, fault.Busy},
		{"nothing failed", State{1, 1}, 0, nil, State{1, 1}, fault.Invalid},
		{"it has ended", State{5, 4}, 0, nil, State{5, 4}, fault.Invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &daemon{state: tt.state, job: tt.job}
			d.answer = map[string]func(*scripted) error{"Migrate": func(*scripted) error {
				var flags uint32
				d.set(func() { flags = d.flags })
				if flags&migratePostCopyResume == 0 || flags&migrateChangeProtection == 0 || flags&migratePostCopy == 0 {
					t.Errorf("flags %#x, want post-copy, its resumption and the protection among them", flags)
				}
				d.set(func() {
					d.state = tt.after
					if !slices.Contains(d.params, Param{"bandwidth.postcopy", uint64(0)}) {
						t.Errorf("parameters %v do not end the bound that it had", d.params)
					}
				})
				return tt.says
			}}
			m := docs
			m.PostCopy, m.MaxDowntime = true, time.Millisecond
			if err := drive(t, d).RecoverPostCopy(t.Context(), guestUUID, m); fault.KindOf(err) != tt.kind {
				t.Errorf("RecoverPostCopy: %v, want kind %q", err, tt.kind)
			}
			d.set(func() {
				if d.bounds != 0 {
					t.Error("it sets bounds of a guest that has left")
				}
			})
		})
	}
}
