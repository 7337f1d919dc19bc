package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config"
)

// TestSample_ItsRightsAreSound takes the examples out of the comments.
func TestSample_ItsRightsAreSound(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "packaging", "berth.toml"))
	if err != nil {
		t.Fatal(err)
	}
	out := "[rights]\n"
	for _, key := range []string{"operate", "share_nothing", "conduct", "relay"} {
		_, example, ok := strings.Cut(string(text), "\n# "+key+" = [")
		if !ok {
			t.Fatalf("no example of %s", key)
		}
		example, _, _ = strings.Cut(example, "\n")
		out += key + " = [" + example + "\n"
	}
	c, err := config.Load(write(t, filepath.Join(t.TempDir(), "berth.toml"), out))
	if err != nil || len(c.Rights.Operate) != 2 || len(c.Rights.ShareNothing) != 3 || len(c.Rights.Conduct) != 1 || len(c.Rights.Relay) != 1 {
		t.Errorf("read %+v, %v", c.Rights, err)
	}
	for _, s := range slices.Concat(c.Rights.Operate, c.Rights.ShareNothing, c.Rights.Conduct, c.Rights.Relay) {
		if h, err := config.ParseHolder(s); err != nil || h.String() != s {
			t.Errorf("%s reads as %s, %v", s, h, err)
		}
	}
}
