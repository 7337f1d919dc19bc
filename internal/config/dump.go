package config

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/fault"
)

// secret are the keys whose values, where a file sets them, are shown to nobody.
var secret = []string{"placement.token"}

// Setting is one key as it counts.
type Setting struct {
	Key   string `json:"key"`   // "agent.mode"
	Value string `json:"value"` // as TOML; empty for a secret that is set
	// From is the last file that names it; empty for the default.
	From   string `json:"from,omitempty"`
	Secret bool   `json:"secret,omitempty"`
	// Reload says that a running agent takes another value from a reload.
	Reload bool `json:"reload,omitempty"`
}

// Dump reads the configuration as Load does, and gives each key as it counts, in the order of
// the sample, with where it comes from. The secrets are in none of it.
func Dump(path string) (Config, []Setting, error) {
	c, err := Load(path)
	if err != nil {
		return c, nil, err
	}
	list, err := files(path)
	if err != nil {
		return c, nil, fault.New(fault.Invalid, "read configuration: %w", err)
	}
	from := map[string]string{}
	for _, file := range list {
		if err := origins(file, from); err != nil {
			return c, nil, err
		}
	}
	out, err := settings(c, from)
	return c, out, err
}

// Secrets are the values of the secret keys that somebody has set, and what is in the files that
// keys name for their secrets. With an error they are those that could be had.
func (c Config) Secrets() ([]string, error) {
	out := []string{c.Placement.Token}
	var err error
	if file := c.Fleet.EtcdPasswordFile; file != "" {
		var text []byte
		if text, err = os.ReadFile(file); err != nil {
			err = fault.New(fault.Invalid, "read the password of etcd's user %s: %w", c.Fleet.EtcdUser, err)
		}
		out = append(out, strings.TrimSpace(string(text)))
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" || s == Default().Placement.Token }), err
}

// files are those that Load lays over each other, in that order.
func files(path string) ([]string, error) {
	list := []string{path}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && path == DefaultPath {
		list = nil
	}
	dropIns, err := listTOML(path + ".d")
	return append(list, dropIns...), err
}

// origins notes the keys that a file names: those of a section, and of a section of names
// ([peers], [hooks]) each name.
func origins(file string, from map[string]string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fault.New(fault.Invalid, "read configuration: %w", err)
	}
	var tree map[string]map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		return fault.New(fault.Invalid, "read %s: %w", file, err)
	}
	for section, keys := range tree {
		for key := range keys {
			from[known(section, key)] = file
		}
	}
	return nil
}

// known is a key as its setting calls it: the reader takes those of sections in capitals too.
// Names ([peers], [hooks]) are as they are written.
func known(section, key string) string {
	if lower := strings.ToLower(section); slices.Contains([]string{"peers", "hooks"}, lower) {
		return lower + "." + key
	}
	return strings.ToLower(section + "." + key)
}

// settings walks the sections of c. A secret that was set is left out, wherever it came from.
func settings(c Config, from map[string]string) ([]Setting, error) {
	var out []Setting
	add := func(key string, v reflect.Value) error {
		s := Setting{Key: key, From: from[key], Secret: slices.Contains(secret, key), Reload: slices.Contains(reloadable, key)}
		if section, _, _ := strings.Cut(key, "."); slices.Contains(reloadable, section) {
			s.Reload = true
		}
		if !s.Secret || v.IsZero() {
			text, err := asTOML(v)
			if err != nil {
				return fault.New(fault.Internal, "write %s: %w", key, err)
			}
			s.Value = text
		}
		out = append(out, s)
		return nil
	}
	root := reflect.ValueOf(c)
	for i := range root.NumField() {
		section, name := root.Field(i), root.Type().Field(i).Tag.Get("toml")
		if section.Kind() == reflect.Map {
			keys := section.MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				if err := add(name+"."+k.String(), section.MapIndex(k)); err != nil {
					return nil, err
				}
			}
			continue
		}
		for j := range section.NumField() {
			if err := add(name+"."+section.Type().Field(j).Tag.Get("toml"), section.Field(j)); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// asTOML writes a value in one line.
func asTOML(v reflect.Value) (string, error) {
	var b strings.Builder
	err := toml.NewEncoder(&b).SetTablesInline(true).Encode(map[string]any{"v": bare(v)})
	return strings.TrimSpace(strings.TrimPrefix(b.String(), "v =")), err
}

// bare is a value without types: what has a text of its own is that, and of a table only the
// keys that are set.
func bare(v reflect.Value) any {
	if v.CanInterface() {
		if m, ok := v.Interface().(encoding.TextMarshaler); ok {
			if text, err := m.MarshalText(); err == nil {
				return string(text)
			}
		}
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		return bare(v.Elem())
	case reflect.Struct:
		out := map[string]any{}
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				out[v.Type().Field(i).Tag.Get("toml")] = bare(v.Field(i))
			}
		}
		return out
	case reflect.Map:
		out := map[string]any{}
		for _, k := range v.MapKeys() {
			out[k.String()] = bare(v.MapIndex(k))
		}
		return out
	case reflect.Slice:
		out := []any{}
		for i := range v.Len() {
			out = append(out, bare(v.Index(i)))
		}
		return out
	}
	return v.Interface()
}

// WriteSettings writes settings as a file that Load reads, with where each comes from. What is
// secret is left out of it, and said.
func WriteSettings(w io.Writer, list []Setting) error {
	var b strings.Builder
	section := ""
	for _, s := range list {
		in, key, _ := strings.Cut(s.Key, ".")
		if in != section {
			if section != "" {
				b.WriteByte('\n')
			}
			section = in
			fmt.Fprintf(&b, "[%s]\n", section)
		}
		if !plainKey(key) {
			key = fmt.Sprintf("%q", key)
		}
		line := key + " = " + s.Value
		if s.Secret && s.Value == "" {
			line = "# " + key + " is set, and secret"
		}
		fmt.Fprintf(&b, "%-48s # %s\n", line, from(s))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func from(s Setting) string {
	if s.From == "" {
		return "default"
	}
	return s.From
}

// plainKey reports whether TOML takes the key without quotes.
func plainKey(key string) bool {
	return key != "" && strings.IndexFunc(key, func(r rune) bool {
		return !(r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) < 0
}
