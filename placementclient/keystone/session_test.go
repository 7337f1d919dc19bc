package keystone

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"berth/internal/fault"
	"berth/internal/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// identity is a Keystone that takes every login until it is told otherwise.
type identity struct {
	mu     sync.Mutex
	logins []map[string]any // the bodies
	status int              // of a refusal; 0 for none
	hold   chan struct{}    // when set, a login waits until it is closed
	life   time.Duration
	skew   time.Duration // how far its clock is ahead
}

func (k *identity) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var body map[string]any
	b, _ := io.ReadAll(q.Body)
	_ = json.Unmarshal(b, &body)
	k.mu.Lock()
	k.logins = append(k.logins, body)
	n, status, hold := len(k.logins), k.status, k.hold
	k.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if q.URL.Path != "/v3/auth/tokens" {
		status = http.StatusNotFound
	}
	if status != 0 {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%d,"title":"No","message":"said no"}}`, status)
		return
	}
	now := time.Now().Add(k.skew).UTC()
	w.Header().Set("X-Subject-Token", fmt.Sprintf("token-%d", n))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"token":{"issued_at":%q,"expires_at":%q,"catalog":[
		{"type":"identity","endpoints":[{"interface":"public","region_id":"one","url":"http://identity"}]},
		{"type":"placement","endpoints":[{"interface":"public","region_id":"one","url":"http://public.one/placement/"},
			{"interface":"internal","region_id":"one","url":"http://internal.one"},{"interface":"public","region_id":"two","url":"http://public.two"}]}]}}`,
		now.Format("2006-01-02T15:04:05.000000Z"), now.Add(k.life).Format("2006-01-02T15:04:05.000000Z"))
}

func (k *identity) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.logins)
}

// clock is the machine's but for the boot clock, which stands still.
type clock struct {
	runtime.System
	mu sync.Mutex
	at time.Duration
}

func (c *clock) Boot() runtime.BootTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	return runtime.BootTime{ID: "boot", Since: c.at}
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at += d
}

// clearVariables takes away what the machine's own OS_* variables say.
func clearVariables(t *testing.T) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OS_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("NO_PROXY", "*")
}

func session(t *testing.T, k *identity, o Options) (*Session, *clock) {
	t.Helper()
	clearVariables(t)
	if k.life == 0 {
		k.life = time.Hour
	}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	o.CloudsFile = filepath.Join(t.TempDir(), "clouds.yaml")
	text := fmt.Sprintf("clouds: {c: {auth: {auth_url: %q, username: u, password: hush, project_name: p, user_domain_name: du, project_domain_name: dp}}}\n", server.URL+"/v3")
	if err := os.WriteFile(o.CloudsFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &clock{}
	o.Cloud, o.Runtime = "c", c
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func token(t *testing.T, s *Session, refused string) string {
	t.Helper()
	got, err := s.Token(t.Context(), refused)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSession_OneLoginServesAll(t *testing.T) {
	k := &identity{hold: make(chan struct{})}
	s, _ := session(t, k, Options{})
	var wg sync.WaitGroup
	got := make([]string, 20)
	for i := range got {
		wg.Go(func() { got[i], _ = s.Token(t.Context(), "") })
	}
	close(k.hold)
	wg.Wait()
	for _, g := range got {
		if g != "token-1" {
			t.Fatalf("got %q", got)
		}
	}
	// All are refused it at once: again one login, and one who comes late with the old
	// token gets the new one.
	for i := range got {
		wg.Go(func() { got[i], _ = s.Token(t.Context(), "token-1") })
	}
	wg.Wait()
	for _, g := range got {
		if g != "token-2" {
			t.Fatalf("after the refusal: %q", got)
		}
	}
	if g, n := token(t, s, "token-1"), k.count(); g != "token-2" || n != 2 {
		t.Errorf("late: %q after %d logins", g, n)
	}
}

func TestSession_RenewsBeforeTheTokenEndsWhateverTheClocksSay(t *testing.T) {
	for _, skew := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour} {
		s, c := session(t, &identity{skew: skew}, Options{})
		var got []string
		for _, d := range []time.Duration{0, 59 * time.Minute, 31 * time.Second, time.Minute} {
			c.pass(d)
			got = append(got, token(t, s, ""))
		}
		if d := cmp.Diff([]string{"token-1", "token-1", "token-2", "token-2"}, got); d != "" {
			t.Errorf("keystone's clock %v ahead (-want +got)\n%s", skew, d)
		}
	}
}

func TestSession_RefusedCredentialsAreNotTriedAgainAtOnce(t *testing.T) {
	k := &identity{status: http.StatusUnauthorized}
	s, c := session(t, k, Options{})
	for range 5 {
		_, err := s.Token(t.Context(), "")
		if fault.KindOf(err) != fault.Forbidden || !strings.Contains(err.Error(), "said no") || strings.Contains(err.Error(), "hush") {
			t.Fatalf("got %v", err)
		}
	}
	if n := k.count(); n != 1 {
		t.Errorf("%d logins", n)
	}
	k.mu.Lock()
	k.status = 0
	k.mu.Unlock()
	c.pass(refusedPause)
	if got := token(t, s, ""); got != "token-2" {
		t.Errorf("after the pause: %q", got)
	}
}

func TestSession_SaysWhatAFailedLoginMeans(t *testing.T) {
	for status, kind := range map[int]fault.Kind{401: fault.Forbidden, 403: fault.Forbidden, 404: fault.Invalid, 500: fault.Unavailable, 503: fault.Unavailable} {
		s, _ := session(t, &identity{status: status}, Options{})
		if _, err := s.Token(t.Context(), ""); fault.KindOf(err) != kind {
			t.Errorf("%d: got %v (%s), want %s", status, err, fault.KindOf(err), kind)
		}
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	clearVariables(t)
	t.Setenv("OS_AUTH_URL", gone.URL)
	t.Setenv("OS_APPLICATION_CREDENTIAL_ID", "id")
	t.Setenv("OS_APPLICATION_CREDENTIAL_SECRET", "hush")
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Token(t.Context(), ""); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("nobody listens: %v (%s)", err, fault.KindOf(err))
	}
}

func TestSession_FindsPlacementByRegionAndInterface(t *testing.T) {
	for _, c := range []struct{ region, iface, want string }{
		{"", "", "http://public.one/placement"}, {"one", "internal", "http://internal.one"}, {"two", "", "http://public.two"}, {"two", "internal", ""}, {"three", "", ""},
	} {
		k := &identity{}
		s, _ := session(t, k, Options{Region: c.region, Interface: c.iface})
		got, err := s.Endpoint(t.Context())
		if got != c.want || (c.want == "") != (fault.KindOf(err) == fault.Unavailable) {
			t.Errorf("%q %q: got %q, %v", c.region, c.iface, got, err)
		}
		if c.want != "" {
			continue
		}
		// It may be added, so the catalogue is read again.
		if _, err = s.Endpoint(t.Context()); err == nil || k.count() != 2 {
			t.Errorf("%q %q: %d logins, %v", c.region, c.iface, k.count(), err)
		}
	}
}

func TestSession_LogsInAsTheVariablesSay(t *testing.T) {
	k := &identity{life: time.Hour}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	for _, c := range []struct {
		set  map[string]string
		want string
	}{
		{map[string]string{"OS_USERNAME": "u", "OS_PASSWORD": "hush", "OS_PROJECT_NAME": "p", "OS_USER_DOMAIN_NAME": "du", "OS_PROJECT_DOMAIN_ID": "dp"},
			`{"auth":{"identity":{"methods":["password"],"password":{"user":{"domain":{"name":"du"},"name":"u","password":"hush"}}},"scope":{"project":{"domain":{"id":"dp"},"name":"p"}}}}`},
		{map[string]string{"OS_USER_ID": "uid", "OS_PASSWORD": "hush", "OS_PROJECT_ID": "pid", "OS_USER_DOMAIN_NAME": "Default"},
			`{"auth":{"identity":{"methods":["password"],"password":{"user":{"id":"uid","password":"hush"}}},"scope":{"project":{"id":"pid"}}}}`},
		{map[string]string{"OS_APPLICATION_CREDENTIAL_ID": "aid", "OS_APPLICATION_CREDENTIAL_SECRET": "hush", "OS_PROJECT_NAME": "p"},
			`{"auth":{"identity":{"application_credential":{"id":"aid","secret":"hush"},"methods":["application_credential"]}}}`},
		{map[string]string{"OS_USERNAME": "u", "OS_PASSWORD": "hush", "OS_USER_DOMAIN_ID": "default", "OS_SYSTEM_SCOPE": "all"},
			`{"auth":{"identity":{"methods":["password"],"password":{"user":{"domain":{"id":"default"},"name":"u","password":"hush"}}},"scope":{"system":{"all":true}}}}`},
	} {
		t.Run("", func(t *testing.T) {
			clearVariables(t)
			t.Setenv("OS_AUTH_URL", server.URL)
			for name, value := range c.set {
				t.Setenv(name, value)
			}
			s, err := New(Options{})
			if err != nil {
				t.Fatal(err)
			}
			token(t, s, "")
			got, err := json.Marshal(k.logins[len(k.logins)-1])
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Errorf("%v (-want +got)\n%s", c.set, d)
			}
		})
	}
}

// TestSecrets_AreThoseOfTheCloudAndOfTheVariables: of the cloud that is named, else of the one that
// the variables name, and of the variables themselves; of nothing else that they say.
func TestSecrets_AreThoseOfTheCloudAndOfTheVariables(t *testing.T) {
	clearVariables(t)
	t.Setenv("HOME", t.TempDir())
	dir := t.TempDir()
	file := filepath.Join(dir, "clouds.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("clouds.yaml", "clouds: {c: {auth: {auth_url: 'http://x', username: u, project_name: p, user_domain_name: d, project_domain_name: d}}, a: {auth_type: v3applicationcredential, auth: {auth_url: 'http://x', application_credential_id: aid, application_credential_secret: of-a}}}")
	write("secure.yaml", "clouds: {c: {auth: {password: of-c}}}")
	variables := []string{"OS_USERNAME=u", "OS_PASSWORD=of=variables", "OS_AUTH_URL=http://y", "HOME=/", "OS_TOKEN="}
	for _, c := range []struct {
		o       Options
		environ []string
		want    []string
	}{
		{Options{}, nil, nil},
		{Options{}, variables, []string{"of=variables"}},
		{Options{Cloud: "nope", CloudsFile: file}, variables, []string{"of=variables"}},
		{Options{Cloud: "c", CloudsFile: file}, nil, []string{"of-c"}},
		{Options{Cloud: "a", CloudsFile: file}, []string{"OS_APPLICATION_CREDENTIAL_SECRET=of-v", "OS_TOKEN=token", "OS_CLOUD=c"}, []string{"of-v", "token", "of-a"}},
		{Options{}, []string{"OS_CLOUD=c", "OS_CLIENT_CONFIG_FILE=" + file}, []string{"of-c"}},
	} {
		if d := cmp.Diff(c.want, Secrets(c.o, c.environ), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%+v, %q (-want +got)\n%s", c.o, c.environ, d)
		}
	}
}

func TestNew_RefusesWhatSaysNotHowToLogIn(t *testing.T) {
	clearVariables(t)
	t.Setenv("HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte("clouds: {c: {auth: {username: u}}, d: {auth: {auth_url: 'http://x'}}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{
		{}, {Cloud: "c"}, {Cloud: "c", CloudsFile: file}, {Cloud: "nope", CloudsFile: file}, {Cloud: "c", CloudsFile: filepath.Join(t.TempDir(), "none")},
		{Cloud: "d", CloudsFile: file, Interface: "private"},
	} {
		if _, err := New(o); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: got %v", o, err)
		}
	}
}
