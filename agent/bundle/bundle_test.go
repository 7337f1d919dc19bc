package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/agent/bundle"
)

// unpack gives the files of an archive by their names.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(text)
	}
}

func TestBundle_HasNoSecretAndSaysWhatItLacks(t *testing.T) {
	var out bytes.Buffer
	b := bundle.New(&out, "berth-host-a", time.Unix(1700000000, 0), []string{"kn0wn-token", ""})
	b.JSON("status.json", "how the agent is", map[string]any{
		"name": "host-a", "ticket": "s3cret-ticket", "token": map[string]any{"epoch": 7, "holder": "host-a"},
		"deep":    []any{map[string]any{"etcd_password": "s3cret-etcd"}},
		"message": "placement refused X-Auth-Token: s3cret-header", "free": "the token is here",
	})
	b.Text("log", "the agent's log", []byte(`level=INFO msg=asked url=http://admin:s3cret-url@etcd:2379 token=kn0wn-token
level=WARN msg="the token is surrendered to host-b" OS_PASSWORD=s3cret-env
etcd_password_file = "/etc/berth/etcd"
{"level":"INFO","auth_token":"s3cret-json","instance":"web-1"}
berth agent --token s3cret-argv --config /etc/berth/berth.toml
Authorization: Bearer s3cret-bearer
level=WARN msg="a hook failed" error="{\"password\": \"s3cret-quoted, s3cret-more\",\"token\":\"s3cret-two\"} after 3 s"
password: "a\"b s3cret-inside"
<graphics type='vnc' passwd='s3cret-vnc'/>
-----BEGIN EC PRIVATE KEY-----
s3cretkey
-----END EC PRIVATE KEY-----
the end of kn0wn-token
`))
	b.Lacks("journal", errors.New("journalctl: not found"))
	b.JSON("odd.json", "cannot be written", func() {})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for name, text := range files {
		if strings.Contains(text, "s3cret") || strings.Contains(text, "kn0wn") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, wants := range map[string][]string{
		"berth-host-a/status.json": {`"epoch": 7`, `"holder": "host-a"`, "the token is here", "placement refused"},
		"berth-host-a/log":         {"the token is surrendered to host-b", "/etc/berth/etcd", `"instance":"web-1"`, "--config /etc/berth/berth.toml", "admin:", "@etcd:2379", "after 3 s", "the end of"},
		"berth-host-a/CONTENTS":    {"status.json", "how the agent is", "journal: journalctl: not found", "odd.json: "},
	} {
		for _, want := range wants {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s lacks %q:\n%s", name, want, files[name])
			}
		}
	}
	if got := b.Missing(); len(got) != 2 {
		t.Errorf("missing: %q", got)
	}
}

// TestBundle_LeavesOutWhatIsKnownHoweverItIsWritten: a password of any signs, in each of the ways
// in which documents, logs and addresses have it.
func TestBundle_LeavesOutWhatIsKnownHoweverItIsWritten(t *testing.T) {
	const password = `sle"ep & <dr\eam>/n0w`
	var out bytes.Buffer
	b := bundle.New(&out, "b", time.Unix(0, 0), []string{"dr\\eam", password, "n0w"})
	b.JSON("said.json", "a message", map[string]string{"message": "etcd refuses " + password + " of berth"})
	b.Text("log", "a log", []byte("refused: "+password+"\nmsg="+strconv.Quote("refused: "+password)+"\nGET http://etcd/v3?as="+url.QueryEscape(password)+"\n"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for name, lines := range map[string]int{"b/said.json": 1, "b/log": 3} {
		text := files[name]
		if strings.Contains(text, "sle") || strings.Contains(text, "eam") || strings.Contains(text, "n0w") || strings.Count(text, "(left out)") != lines {
			t.Errorf("%s:\n%s", name, text)
		}
	}
	if !strings.Contains(files["b/said.json"], "of berth") {
		t.Errorf("left out with it: %s", files["b/said.json"])
	}
}

func TestBundle_KeepsTheEndOfALongText(t *testing.T) {
	var out bytes.Buffer
	b := bundle.New(&out, "b", time.Unix(0, 0), nil)
	b.Keep = 1000
	line := strings.Repeat("x", 99) + "\n"
	b.Text("log", "a log", []byte(strings.Repeat(line, 50)+"last\n"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	if log := files["b/log"]; len(log) > b.Keep || !strings.HasSuffix(log, line+"last\n") || !strings.HasPrefix(log, line) {
		t.Errorf("%d bytes are kept", len(log))
	}
	if !strings.Contains(files["b/CONTENTS"], "is left out") {
		t.Error("it is not said that something is left out")
	}
}

func TestBundle_TellsOfAFailedWrite(t *testing.T) {
	b := bundle.New(failing{}, "b", time.Unix(0, 0), nil)
	b.Text("log", "a log", []byte("some text that is kept\n"))
	if err := b.Close(); err == nil {
		t.Error("a full disk is not told")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space") }
