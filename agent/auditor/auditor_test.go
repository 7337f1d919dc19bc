package auditor_test

import (
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"berth/agent/auditor/auditortest"
	"berth/placement"
	"berth/placementclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// embedded gives clients of an empty Placement of ours, in memory.
func embedded(t testing.TB) func(t *testing.T) *placementclient.Client {
	t.Helper()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(t *testing.T) *placementclient.Client {
		t.Helper()
		c, err := placementclient.New(placementclient.Config{URL: h.URL, Token: "admin"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
}

func TestAuditor_HealsWhatIsProvableAndNamesTheRest(t *testing.T) {
	auditortest.Leaks(t, embedded(t))
}
