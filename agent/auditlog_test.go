package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth/agent/api"
)

// auditLines reads a file of the audit log.
func auditLines(t *testing.T, path string) []api.AuditEntry {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []api.AuditEntry
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var e api.AuditEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		out = append(out, e)
	}
	return out
}

// spoken is an agent's own log.
type spoken struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *spoken) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// disable asks a running agent for a change that is done.
func disable(t *testing.T, c *api.Client, why string) {
	t.Helper()
	yes := true
	if _, err := c.SetHost(t.Context(), api.SetHost{Disabled: &yes, Reason: why}); err != nil {
		t.Fatal(err)
	}
}

// TestAuditLog_GoesOnInAFileThatIsMovedAway: whoever rotates logs tells nobody.
func TestAuditLog_GoesOnInAFileThatIsMovedAway(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	c.Agent.AuditLog = filepath.Join(t.TempDir(), "audit.log")
	client, stop := start(t, agentOptions(t, c))
	disable(t, client, "first")
	disable(t, client, "second")
	if err := os.Rename(c.Agent.AuditLog, c.Agent.AuditLog+".1"); err != nil {
		t.Fatal(err)
	}
	disable(t, client, "third")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var said [][]string
	for _, path := range []string{c.Agent.AuditLog + ".1", c.Agent.AuditLog} {
		var words []string
		for _, e := range auditLines(t, path) {
			if e.Do != "host-set" || e.Result != api.AuditDone || e.Host != "host-t" || e.UID == nil || int(*e.UID) != os.Getuid() || !strings.HasPrefix(e.By, "user:") {
				t.Errorf("%s: %+v", path, e)
			}
			words = append(words, e.On...)
		}
		said = append(said, words)
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", path, st.Mode(), err)
		}
	}
	if !slices.Equal(said[0], []string{"disabled=true", "reason=first", "disabled=true", "reason=second"}) || !slices.Equal(said[1], []string{"disabled=true", "reason=third"}) {
		t.Errorf("the files say %q", said)
	}
}

// TestAuditLog_NothingWaitsForAFileThatCannotBeWritten: the lines go to the agent's own log,
// also where that takes no more than errors, and berth status says so until the file is back.
func TestAuditLog_NothingWaitsForAFileThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	dir := filepath.Join(t.TempDir(), "not-there-yet")
	c.Agent.AuditLog = filepath.Join(dir, "audit.log")
	o, own := agentOptions(t, c), &spoken{}
	o.Logger = slog.New(slog.NewTextHandler(own, &slog.HandlerOptions{Level: slog.LevelError}))
	client, _ := start(t, o)
	told := func() bool {
		s, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(s.Conditions, func(c api.Condition) bool {
			return c.Name == "configuration" && c.Health == api.HealthDegraded && strings.Contains(c.Detail, "audit log")
		})
	}
	if !told() {
		t.Error("berth status does not say that the audit log cannot be written")
	}
	disable(t, client, "no file")
	if text := own.String(); !strings.Contains(text, "msg=audit") || !strings.Contains(text, "reason=no file") || !strings.Contains(text, "result=done") {
		t.Errorf("the agent's own log has no such line:\n%s", text)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	disable(t, client, "a file")
	if lines := auditLines(t, c.Agent.AuditLog); len(lines) != 1 || !slices.Contains(lines[0].On, "reason=a file") {
		t.Errorf("the file has %+v", lines)
	}
	if told() {
		t.Error("berth status still says that the audit log cannot be written")
	}
	if strings.Contains(own.String(), "reason=a file") {
		t.Error("a line is in both")
	}
}
