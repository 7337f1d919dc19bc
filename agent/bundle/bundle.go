// Package bundle writes what a person needs who looks into a host's troubles from elsewhere:
// one archive of documents and logs, with no secret in it.
//
// What goes in is looked through twice: values of keys whose names say that they are secret
// are left out of JSON, and of text, with private keys, passwords in addresses and the values
// that the caller knows to be secret wherever they stand. What could not be had is named in
// the archive: a bundle of half a host is better than none.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Most is what Keep begins with. Arbitrary: a day of a busy agent's log.
const Most = 8 << 20

// Bundle is an archive on its way. Make it with New; Close ends it.
type Bundle struct {
	Keep int // how much of one text is kept, in bytes: its end; New sets Most

	folder  string
	at      time.Time
	secrets []string
	zip     *gzip.Writer
	tar     *tar.Writer
	parts   []string // what is in it, a line each
	lacks   []string // what is not, and why
	err     error    // of the first write that failed
}

// New begins an archive of one folder, gzip over tar. secrets are values that are left out
// wherever they stand.
func New(w io.Writer, folder string, at time.Time, secrets []string) *Bundle {
	b := &Bundle{Keep: Most, folder: folder, at: at, zip: gzip.NewWriter(w)}
	for _, s := range secrets {
		if len(s) >= 4 { // less is no secret, and would stand in everything
			b.secrets = append(b.secrets, writings(s)...)
		}
	}
	// One that has another in it is left out as a whole.
	slices.SortStableFunc(b.secrets, func(x, y string) int { return cmp.Compare(len(y), len(x)) })
	b.tar = tar.NewWriter(b.zip)
	return b
}

// JSON adds a document.
func (b *Bundle) JSON(name, about string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		b.Lacks(name, err)
		return
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		b.Lacks(name, err)
		return
	}
	tree = withoutSecrets(tree)
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(tree); err != nil {
		b.Lacks(name, err)
		return
	}
	// Values that stand in messages are looked for as in any text.
	b.add(name, about, b.known(out.Bytes()))
}

// Text adds a text; of a long one its end.
func (b *Bundle) Text(name, about string, text []byte) {
	if cut := len(text) - b.Keep; cut > 0 {
		text = text[cut:]
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
		about += fmt.Sprintf("; its beginning, %d bytes, is left out", cut)
	}
	b.add(name, about, b.known(Redact(text)))
}

// Lacks notes what could not be had.
func (b *Bundle) Lacks(name string, err error) {
	b.lacks = append(b.lacks, fmt.Sprintf("%s: %s", name, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", " ")))
}

// Missing is what could not be had, a line each.
func (b *Bundle) Missing() []string { return b.lacks }

// Close writes the list of what is in it, and ends the archive. It gives the first error of
// all writes.
func (b *Bundle) Close() error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, made at %s\n\nNo secret is in it as far as they are known: values of keys named as secrets, private keys and\npasswords in addresses are replaced by %s. Names of guests, hosts and addresses are in it.\n\n",
		b.folder, b.at.UTC().Format(time.RFC3339), hidden)
	for _, p := range b.parts {
		fmt.Fprintln(&text, p)
	}
	if len(b.lacks) > 0 {
		fmt.Fprintf(&text, "\ncould not be had:\n")
		for _, l := range b.lacks {
			fmt.Fprintln(&text, "  "+l)
		}
	}
	b.add("CONTENTS", "this list", b.known(Redact([]byte(text.String()))))
	for _, end := range []io.Closer{b.tar, b.zip} {
		if err := end.Close(); b.err == nil {
			b.err = err
		}
	}
	return b.err
}

func (b *Bundle) add(name, about string, data []byte) {
	if b.err != nil {
		return
	}
	b.parts = append(b.parts, fmt.Sprintf("%-24s %s", name, about))
	h := &tar.Header{Name: path.Join(b.folder, name), Mode: 0o600, Size: int64(len(data)), ModTime: b.at, Format: tar.FormatPAX}
	if b.err = b.tar.WriteHeader(h); b.err == nil {
		_, b.err = b.tar.Write(data)
	}
}

// writings are the ways in which a value stands in texts: as it is, in quotes of Go's and of
// JSON's, and in an address.
func writings(s string) []string {
	out := []string{s}
	quoted, _ := json.Marshal(s) // of a string there is no error
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)
	for _, w := range []string{
		strings.TrimSuffix(strconv.Quote(s)[1:], `"`), string(quoted[1 : len(quoted)-1]), strings.TrimSuffix(strings.TrimPrefix(plain.String(), `"`), "\"\n"),
		url.QueryEscape(s), url.PathEscape(s),
	} {
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// known leaves out the values that the caller knows.
func (b *Bundle) known(text []byte) []byte {
	for _, s := range b.secrets {
		text = bytes.ReplaceAll(text, []byte(s), []byte(hidden))
	}
	return text
}
