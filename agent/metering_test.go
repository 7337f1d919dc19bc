package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/api"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/runtime"
)

// patience is for what happens within a second or two where nobody else works: it only ends
// tests that fail, on however busy a machine.
const patience = 2 * time.Minute

// hanging is a hypervisor that is there, and never comes back.
type hanging struct {
	absent
	asked *atomic.Bool
}

func (h hanging) hang(ctx context.Context) error {
	h.asked.Store(true)
	<-ctx.Done()
	return context.Cause(ctx)
}

func (hanging) Health() error { return nil }
func (h hanging) Node(ctx context.Context) (driver.Node, error) {
	return driver.Node{}, h.hang(ctx)
}
func (h hanging) Domains(ctx context.Context) ([]driver.Domain, error) { return nil, h.hang(ctx) }
func (h hanging) Domain(ctx context.Context, _ string) (driver.Domain, error) {
	return driver.Domain{}, h.hang(ctx)
}

// scrape asks for metrics; empty where nobody answers.
func scrape(t *testing.T, address string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Get("http://" + address + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a scrape: %d, %v: %s", resp.StatusCode, err, text)
	}
	return string(text)
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// TestMetrics_AreServedWhileTheHypervisorHangs: the start of the agent itself waits for it
// meanwhile, and no request but a scrape is answered.
func TestMetrics_AreServedWhileTheHypervisorHangs(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	c.Metrics.Listen, c.Migration.MaxOutbound = "127.0.0.1:0", 3
	o := agentOptions(t, c)
	var asked atomic.Bool
	o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return hanging{asked: &asked} }
	made := make(chan *Agent, 1)
	o.made = func(a *Agent) { made <- a }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		// Told to stop in the middle of its start, a part may not have begun.
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	a := <-made
	await(t, "the hypervisor is asked", asked.Load)
	// The driver is asked after all parts were made.
	await(t, "metrics are served", func() bool { return a.metering.at.Load() != nil })
	var text string
	await(t, "samples are read", func() bool {
		text = scrape(t, *a.metering.at.Load())
		return strings.Contains(text, "berth_sample_timestamp_seconds")
	})
	for _, want := range []string{`berth_migration_turns_held{direction="outbound"} 0`, `berth_migration_turns_limit{direction="outbound"} 3`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	// Others work on the same machine, so that half of a round are to be in time, and a round may
	// be disturbed: one that asked the hypervisor would be never.
	await(t, "half of the scrapes of a round are answered within "+scrapeBound.String(), func() bool {
		took := make([]time.Duration, 21)
		for i := range took {
			began := time.Now()
			scrape(t, *a.metering.at.Load())
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		median, slowest := took[len(took)/2], took[len(took)-1]
		t.Logf("of %d scrapes while the hypervisor hangs: median %s, slowest %s", len(took), median, slowest)
		return median < scrapeBound
	})
	// The agent works, and its host does not; the local socket says so while requests wait.
	for path, want := range map[string]string{api.HealthzPath: "ok\n", api.ReadyzPath: "no   start: starting\n"} {
		await(t, path+" on the local socket says "+want, func() bool {
			_, words := answered(t, c.Agent.SocketPath(), path)
			return strings.Contains(words, want)
		})
		await(t, path+" beside metrics says "+want, func() bool {
			resp, err := http.Get("http://" + *a.metering.at.Load() + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			words, err := io.ReadAll(resp.Body)
			return err == nil && strings.Contains(string(words), want)
		})
	}
}

// TestMetrics_TellOfTheHost: what agents of a pair show of claims, Placement and certificates.
func TestMetrics_TellOfTheHost(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Second, []string{"host-a", "host-b"}, func(o *Options) { o.Config.Metrics.Listen = "127.0.0.1:0" })
	p.guest("host-a", "web")
	address := func(on string) (at string) {
		await(t, "metrics of "+on+" are served", func() bool {
			is := p.condition(on, "metrics")
			_, at, _ = strings.Cut(is.Detail, "served on ")
			return is.Health == api.HealthOK && at != "" && !strings.HasSuffix(at, ":0")
		})
		return at
	}
	at := address("host-a")
	for _, want := range []string{
		`berth_agent_info{mode="manage",name="host-a",version=`,
		`berth_agent_ready 1`,
		`berth_host_disabled 0`,
		`berth_health{part="libvirt"} 1`,
		`berth_claims{kind="instance",state="bound"} 1`,
		`berth_instances 1`,
		`berth_resource_used{resource_class="MEMORY_MB"} 128`,
		`berth_resource_capacity{resource_class="VCPU"} `,
		`berth_cell_memory_bytes{cell="0"} `,
		`berth_cell_pages{cell="0",page_size="4KiB"} `,
		`berth_claim_duration_seconds_count{kind="instance",result="given"} 1`,
		`berth_claim_lock_held_seconds_count `,
		`berth_placement_calls_total{method="PUT",route="/allocations/{consumer}",status="204"} 1`,
		`berth_placement_conflicts_total{conflict="consumer_generation"} 0`,
		`berth_placement_synced_timestamp_seconds `,
		`berth_certificate_expiry_timestamp_seconds{name="host-a",use="host"} `,
		`berth_certificate_expiry_timestamp_seconds{name="test",use="authority"} `,
		`berth_audit_rows{verdict="agree"} `,
	} {
		await(t, "metrics have "+want, func() bool { return strings.Contains(scrape(t, at), "\n"+want) })
	}
}

// TestMetrics_APortThatIsTakenKeepsNobodyFromRunning: it is told, and tried again.
func TestMetrics_APortThatIsTakenKeepsNobodyFromRunning(t *testing.T) {
	t.Parallel()
	// An address of its own: of those at 127.0.0.1 another test might get the port that is let go.
	taken, err := net.Listen("tcp", "127.0.77.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := settings(t, nowhere(t))
	c.Metrics.Listen = taken.Addr().String()
	client, _ := start(t, agentOptions(t, c))
	condition := func() api.Condition {
		s, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range s.Conditions {
			if part.Name == "metrics" {
				return part
			}
		}
		t.Fatalf("nothing is said of metrics: %+v", s.Conditions)
		return api.Condition{}
	}
	var got api.Condition
	await(t, "the port is named", func() bool { got = condition(); return got.Health == api.HealthDegraded })
	if !strings.Contains(got.Detail, taken.Addr().String()) || got.Reasons[0].Code != "metrics_port" || !strings.Contains(got.Reasons[0].Change, "[metrics] listen") {
		t.Errorf("metrics: %+v, want the address, and what to do", got)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "metrics are served", func() bool { got = condition(); return got.Health == api.HealthOK })
	await(t, "a scrape is answered", func() bool { return strings.Contains(scrape(t, c.Metrics.Listen), "berth_") })
}

func TestMetrics_AreOffWhereNoAddressIsSet(t *testing.T) {
	t.Parallel()
	client, _ := start(t, agentOptions(t, settings(t, nowhere(t))))
	s, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range s.Conditions {
		if part.Name == "metrics" {
			t.Errorf("told of what is off: %+v", part)
		}
	}
}
