package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// A fakeHost gives back what it was last given.

func (h *fakeHost) ReadDisk(_ context.Context, r migration.Ref, d migration.DiskRange) (migration.DiskPiece, error) {
	h.mu.Lock()
	p := h.piece
	h.mu.Unlock()
	if d.Path != p.Path {
		p = migration.DiskPiece{Path: d.Path}
	}
	return p, h.note("ReadDisk", r)
}

func (h *fakeHost) WriteDisk(_ context.Context, r migration.Ref, p migration.DiskPiece) error {
	h.mu.Lock()
	h.piece = p
	h.piece.Data = bytes.Clone(p.Data) // it is the caller's
	h.mu.Unlock()
	return h.note("WriteDisk", r)
}

func (h *fakeHost) ShippedSoFar(_ context.Context, r migration.Ref) (migration.Shipped, error) {
	return migration.Shipped{Files: []migration.ShippedFile{{Path: "/d", Bytes: 7}}}, h.note("ShippedSoFar", r)
}

func (h *fakeHost) SealDisks(_ context.Context, r migration.Ref, want migration.Shipped) error {
	if len(want.Files) != 1 {
		return fault.New(fault.Invalid, "%+v", want)
	}
	return h.note("SealDisks", r)
}

func TestShip_PiecesTravelWhole(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	data := make([]byte, migration.ShipBlock)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(data) // never fails
	for _, p := range []migration.DiskPiece{
		{Path: "/images/ein ü\n\"x\".raw", Offset: 3 * migration.ShipBlock, Length: migration.ShipBlock, Size: 1 << 40, Version: "1:2", Sum: migration.PieceSum(data), Data: data},
		{Path: "/d", Length: 3, Size: 3, Version: "1:2", Sum: migration.PieceSum([]byte("abc")), Data: []byte("abc")},
		{Path: "/d", Length: migration.ShipRun, Size: 1 << 50, Version: "1:2", Zero: true},
		{Path: "/d", Length: 3, Size: 3, Version: "1:2", Sum: migration.PieceSum([]byte("abc"))}, // only compared
	} {
		if err := operation.WriteDisk.Ask(t.Context(), c, ref, p); err != nil {
			t.Fatal(err)
		}
		came := w.verbs.piece
		if !bytes.Equal(p.Data, came.Data) {
			t.Errorf("%d bytes at %d of %q came as %d others", len(p.Data), p.Offset, p.Path, len(came.Data))
		}
		want := p
		want.Data, came.Data = nil, nil
		if diff := cmp.Diff(want, came); diff != "" {
			t.Errorf("piece (-want +got):\n%s", diff)
		}
		got, err := operation.ReadDisk.Ask(t.Context(), c, ref, migration.DiskRange{Path: p.Path})
		if err != nil || len(got.Data) != len(p.Data) || !bytes.Equal(got.Data, p.Data) || got.Sum != p.Sum || got.Zero != p.Zero || got.Version != p.Version {
			t.Errorf("piece of %d bytes was read as %d bytes: %v", len(p.Data), len(got.Data), err)
		}
	}
	far, err := operation.ShippedSoFar.Ask(t.Context(), c, ref)
	if err != nil || len(far.Files) != 1 || far.Files[0].Bytes != 7 {
		t.Errorf("so far: %+v, %v", far, err)
	}
	if err := operation.SealDisks.Ask(t.Context(), c, ref, far); err != nil {
		t.Error(err)
	}
	w.verbs.fail = fault.Refuse(fault.DoesNotFit, "", fault.Reason{Code: "disk_room_short", Message: "no room"})
	err = operation.WriteDisk.Ask(t.Context(), c, ref, migration.DiskPiece{Path: "/d"})
	if !errors.Is(err, fault.DoesNotFit) || len(fault.ReasonsOf(err)) != 1 {
		t.Errorf("a refusal of a piece: %v", err)
	}
	if _, err = operation.ReadDisk.Ask(t.Context(), c, ref, migration.DiskRange{Path: "/d"}); !errors.Is(err, fault.DoesNotFit) {
		t.Errorf("a refusal to read: %v", err)
	}
}

func TestShip_OnlyTheConductorReadsAndWrites(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	for name, c := range map[string]*api.Client{
		"a third host": client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-c"), As: "host-c"}),
		"an operator":  client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.operator("alice")}),
		"the socket":   client(t, api.ClientOptions{Socket: w.socket}),
	} {
		_, readErr := operation.ReadDisk.Ask(t.Context(), c, ref, migration.DiskRange{Path: "/d"})
		_, farErr := operation.ShippedSoFar.Ask(t.Context(), c, ref)
		for verb, err := range map[string]error{
			"read": readErr, "ask": farErr, "write": operation.WriteDisk.Ask(t.Context(), c, ref, migration.DiskPiece{Path: "/d"}),
			"seal": operation.SealDisks.Ask(t.Context(), c, ref, migration.Shipped{}),
		} {
			if !errors.Is(err, fault.Forbidden) {
				t.Errorf("%s may %s: %v", name, verb, err)
			}
		}
	}
	// The destination does not read: whoever conducts does.
	w.parties["m-1"] = [2]string{"host-a", "host-b"}
	c := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	if _, err := operation.ReadDisk.Ask(t.Context(), c, ref, migration.DiskRange{Path: "/d"}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("the destination may read: %v", err)
	}
	if len(w.verbs.calls) != 0 {
		t.Errorf("verbs that were run all the same: %v", w.verbs.calls)
	}
}

// TestShip_FramesAreBoundedAndStrict sends what is no frame, and what is too large for one.
func TestShip_FramesAreBoundedAndStrict(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	id := ours.host("host-b")
	raw := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{id.Certificate}, RootCAs: id.Roots, ServerName: "host-a"}}}
	defer raw.CloseIdleConnections()
	header := `{"ref":{"migration":"m-1","instance":"i-1","attempt":1,"step":"s"},"args":{"path":"/d","offset":0,"length":3,"size":3,"version":"v"}}`
	frame := func(header, data string) string {
		return string(binary.BigEndian.AppendUint32(nil, uint32(len(header)))) + header + data
	}
	const framed = "application/vnd.berth.piece"
	for _, tt := range []struct {
		name, kind, body string
		status           int
	}{
		{"a frame", framed, frame(header, "abc"), http.StatusOK},
		{"the largest frame", framed, frame(header, strings.Repeat("x", migration.ShipBlock)), http.StatusOK},
		{"nothing", framed, "", http.StatusBadRequest},
		{"less than a length", framed, "\x00\x00\x00", http.StatusBadRequest},
		{"no header", framed, "\x00\x00\x00\x00", http.StatusBadRequest},
		{"half a header", framed, frame(header, "")[:40], http.StatusBadRequest},
		{"a header that is too long", framed, frame(header+strings.Repeat(" ", 64<<10), ""), http.StatusBadRequest},
		{"a length of all ones", framed, "\xff\xff\xff\xff" + header, http.StatusBadRequest},
		{"one byte too much", framed, frame(header, strings.Repeat("x", migration.ShipBlock+1)), http.StatusBadRequest},
		{"far too much", framed, frame(header, strings.Repeat("x", 3*migration.ShipBlock)), http.StatusRequestEntityTooLarge},
		{"a header with an unknown field", framed, frame(strings.Replace(header, `"zero"`, "", 1)[:len(header)-1]+`,"more":1}`, ""), http.StatusBadRequest},
		{"no JSON", framed, frame("not JSON", "abc"), http.StatusBadRequest},
		{"JSON alone", "application/json", header, http.StatusBadRequest},
		{"a form", "application/x-www-form-urlencoded", frame(header, "abc"), http.StatusBadRequest},
	} {
		before := w.verbs.count("WriteDisk")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.address+"/v1/verbs/write-disk", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", tt.kind)
		req.Header.Set("Berth-Host", "host-b")
		resp, err := raw.Do(req)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%s: answered %d, want %d: %.200s", tt.name, resp.StatusCode, tt.status, text)
		}
		if came := w.verbs.count("WriteDisk") > before; came != (tt.status == http.StatusOK) {
			t.Errorf("%s: the verb was run: %v", tt.name, came)
		}
	}
}

func TestOpenAPI_KnowsFrames(t *testing.T) {
	paths := api.OpenAPI()["paths"].(map[string]any)
	content := func(path string, keys ...string) map[string]any {
		at := paths[path].(map[string]any)["post"].(map[string]any)
		for _, k := range keys {
			at = at[k].(map[string]any)
		}
		return at["content"].(map[string]any)
	}
	for what, c := range map[string]map[string]any{
		"write-disk": content("/v1/verbs/write-disk", "requestBody"), "read-disk": content("/v1/verbs/read-disk", "responses", "200"),
	} {
		media, ok := c["application/vnd.berth.piece"].(map[string]any)
		if !ok || len(c) != 1 || media["schema"] == nil || media["x-frame"] == "" {
			t.Errorf("%s: %v", what, c)
		}
	}
	if _, ok := content("/v1/verbs/read-disk", "requestBody")["application/json"]; !ok {
		t.Error("what asks for a piece is JSON")
	}
}

func TestShip_StraightIsAskedByWhoConducts(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"], w.parties["conducted"] = [2]string{"host-a", "host-b"}, [2]string{"host-c"}
	w.rights.hosts = []string{"host-c"}
	as := func(name string) *api.Client {
		return client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host(name), As: name})
	}
	c := as("host-c")
	if err := errors.Join(operation.SendDisks.Ask(t.Context(), c, ref, migration.SendRequest{Destination: "host-b"}), operation.Reaches.Ask(t.Context(), c, migration.Ref{}, migration.ReachRequest{Host: "host-b"}), c.Reach(t.Context())); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"SendDisks", "Reaches host-b"}, w.verbs.calls); diff != "" {
		t.Errorf("verbs that were run (-want +got):\n%s", diff)
	}
	b := as("host-b")
	for verb, err := range map[string]error{
		"send": operation.SendDisks.Ask(t.Context(), b, ref, migration.SendRequest{Destination: "host-b"}), "ask for reach": operation.Reaches.Ask(t.Context(), b, migration.Ref{}, migration.ReachRequest{Host: "host-c"}),
	} {
		if !errors.Is(err, fault.Forbidden) {
			t.Errorf("the destination may %s: %v", verb, err)
		}
	}
	// What goes on is asked for again by who conducts, who has a pause to make.
	w.verbs.fail = fault.New(fault.Busy, "it is under way")
	if err := operation.SendDisks.Ask(t.Context(), c, ref, migration.SendRequest{}); !errors.Is(err, fault.Busy) {
		t.Errorf("answered at once that it goes on: %v", err)
	}
	other := newCA(t, "other")
	stranger := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: other.host("host-c"), As: "host-c"})
	nobody := client(t, api.ClientOptions{Address: "127.0.0.1:1", Name: "host-a", Identity: ours.host("host-c"), As: "host-c"})
	if err := stranger.Reach(t.Context()); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a host of another CA reaches this one: %v", err)
	}
	if err := nobody.Reach(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("an agent that is not there is reached: %v", err)
	}
}
