package reporter_test

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"berth/agent/reporter/reportertest"
	"berth/placement"
	"berth/placementclient"
)

func TestMain(m *testing.M) {
	if f := flag.Lookup("rapid.checks"); raceDetector && f != nil {
		// Before the command line, which may say otherwise.
		if err := f.Value.Set("25"); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// handler carries requests to a handler of this process.
type handler struct{ http.Handler }

func (h handler) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	in := r.Clone(r.Context())
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, in)
	return answer.Result(), nil
}

// embedded is a Placement of ours, in memory.
func embedded(t testing.TB) http.RoundTripper {
	t.Helper()
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: reportertest.Silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return handler{server}
}

func newBench(t testing.TB) *reportertest.Bench {
	t.Helper()
	return reportertest.New(t, embedded(t), placementclient.MaxMicroversion)
}

func TestReporter_PassesTheSuite(t *testing.T) {
	reportertest.Suite(t, embedded(t))
}
