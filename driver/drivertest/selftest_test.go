package drivertest_test

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/driver"
	"berth/driver/drivertest"
)

// interfaces are what a driver is held to: the contract and its abilities.
var interfaces = map[driver.Ability]reflect.Type{
	"":                          reflect.TypeFor[driver.Driver](),
	driver.AbilityLiveMigration: reflect.TypeFor[driver.LiveMigrator](),
	driver.AbilityStorageCopy:   reflect.TypeFor[driver.StorageCopier](),
	driver.AbilityPostCopy:      reflect.TypeFor[driver.PostCopier](),
	driver.AbilityGuestAgent:    reflect.TypeFor[driver.GuestAgent](),
	driver.AbilityStatistics:    reflect.TypeFor[driver.Statistician](),
	driver.AbilityDevices:       reflect.TypeFor[driver.DeviceWatcher](),
	driver.AbilityConnections:   reflect.TypeFor[driver.Connector](),
	driver.AbilityRecovery:      reflect.TypeFor[driver.PostCopyRecoverer](),
}

// A driver in which any one method is broken, in any of these ways, does not pass
// the suite. Methods are enumerated: a new one is broken too, and shows whether a
// property looks at it.
func TestRun_FailsADriverWithABrokenMethod(t *testing.T) {
	t.Parallel()
	if got, want := len(interfaces), 1+len(driver.Abilities()); got != want {
		t.Fatalf("%d interfaces, want %d: the contract's and one of each ability", got, want)
	}
	specials := special()
	methods := map[string]bool{}
	var verdicts []*verdict
	for a, i := range interfaces {
		for m := range i.Methods() {
			methods[m.Name] = true
			mutants := slices.Clone(everywhere)
			for _, s := range specials {
				if s.method == m.Name {
					mutants = append(mutants, s)
				}
			}
			for _, mutant := range mutants {
				mutant.method = m.Name
				verdicts = append(verdicts, &verdict{mutant: mutant, ability: a})
			}
		}
	}
	// They wait more than they work.
	var g errgroup.Group
	g.SetLimit(24)
	for _, v := range verdicts {
		g.Go(func() error {
			// Long enough for the fake, whose jobs take some hundredths of a second; what
			// shall pass must pass on a busy machine too.
			patience := 400 * time.Millisecond
			if _, unharmed := harmless[v.name()]; unharmed {
				patience = 20 * time.Second
			}
			v.property, v.said = catch(t, v.mutant, v.ability, patience)
			return nil
		})
	}
	_ = g.Wait() // they fail in what they found
	for _, v := range verdicts {
		t.Run(v.name(), func(t *testing.T) {
			_, unharmed := harmless[v.name()]
			switch {
			case v.property == "" && !unharmed:
				t.Error("it passes the whole suite")
			case v.property != "" && unharmed:
				t.Errorf("%s fails (%s), though the mutant is said to be harmless", v.property, v.said)
			case v.property != "":
				t.Logf("%s: %s", v.property, v.said)
			}
		})
	}
	for _, s := range specials {
		if !methods[s.method] {
			t.Errorf("%s is broken, and is no method of the contract", s.method)
		}
	}
}

// What is broken is found in the mutants, not in the recorder: with nothing broken
// it records no failure.
func TestRun_PassesTheSameDriverUnbroken(t *testing.T) {
	t.Parallel()
	whole := mutant{how: "as it should be", twist: func(a act) (any, error) { return a.well() }}
	for _, method := range []string{"", "Events", "Migrate"} {
		whole.method = method
		if property, said := catch(t, whole, "", 20*time.Second); property != "" {
			t.Errorf("%s fails with an unbroken %q: %s", property, method, said)
		}
	}
}

// verdict is what became of a mutant: the first property that it failed, and what
// that said.
type verdict struct {
	mutant
	ability        driver.Ability
	property, said string
}

// catch looks for a property that a mutant fails. Waits end after patience.
func catch(t testing.TB, m mutant, a driver.Ability, patience time.Duration) (property, said string) {
	for _, name := range order(m.method, a) {
		r := &recorder{TB: t, patience: patience}
		r.run(func() {
			h := harness(r)
			unbroken := h.New
			h.New = func(t testing.TB) driver.Driver { return breakIt(unbroken(t), m) }
			pair := h.Pair
			h.Pair = func(t testing.TB) drivertest.Pair {
				p := pair(t)
				p.Source, p.Destination = breakIt(p.Source, m), breakIt(p.Destination, m)
				return p
			}
			drivertest.Hold(r, name, h)
		})
		if said, failed := r.verdict(); failed {
			return name, said
		}
	}
	return "", ""
}

// order puts the properties first that are most likely to catch: named after the
// method, of its ability, and about ends; those that wait come last.
func order(method string, a driver.Ability) []string {
	everything := drivertest.Properties("")
	stem := strings.TrimPrefix(method, "Set")
	named := slices.DeleteFunc(slices.Clone(everything), func(p string) bool { return !strings.Contains(p, stem) || method == "" })
	slow := drivertest.Properties("Hang_", "Restart_", "Events_ASlow", "Devices_Restart")
	var out []string
	for _, p := range slices.Concat(named, drivertest.Properties("Close_", "Calls_", "Abilities_"), drivertest.OfAbility(a),
		slices.DeleteFunc(slices.Clone(everything), func(p string) bool { return slices.Contains(slow, p) }), slow) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func breakIt(d driver.Driver, m mutant) driver.Driver {
	return &broken{able: d.(able), method: m.method, twist: m.twist}
}

func withoutCancel(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

var uuidElement = regexp.MustCompile(`<uuid>([^<]*)</uuid>`)

func uuidOf(doc string) string {
	if m := uuidElement.FindStringSubmatch(doc); m != nil {
		return m[1]
	}
	return ""
}

// recorder is a test that may fail without anybody's failing. What it does not
// replace is the real one's.
type recorder struct {
	testing.TB
	patience time.Duration

	mu       sync.Mutex
	failed   bool
	said     []string
	cleanups []func()
}

// run is the test and its cleanups, each of which may end itself.
func (r *recorder) run(test func()) {
	alone := func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
	}
	alone(test)
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		alone(f)
	}
}

func (r *recorder) verdict() (said string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.said, "; "), r.failed
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.said = append(r.said, text)
}

// Patience is how long the suite waits before it calls something absent.
func (r *recorder) Patience() time.Duration { return r.patience }

func (r *recorder) Helper()                   {}
func (r *recorder) Log(...any)                {}
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Error(v ...any)            { r.fail(fmt.Sprint(v...)) }
func (r *recorder) Errorf(f string, v ...any) { r.fail(fmt.Sprintf(f, v...)) }
func (r *recorder) Fatal(v ...any)            { r.fail(fmt.Sprint(v...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, v ...any) { r.fail(fmt.Sprintf(f, v...)); runtime.Goexit() }
func (r *recorder) Fail()                     { r.fail("failed") }
func (r *recorder) FailNow()                  { r.fail("failed"); runtime.Goexit() }
func (r *recorder) Failed() bool              { _, failed := r.verdict(); return failed }
func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
