package domainxml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/beevik/etree"
)

// What no document of libvirt's exceeds: its remote protocol carries no longer
// string (REMOTE_STRING_MAX), and the parser it uses takes no deeper one (libxml2:
// 256 levels, 2048 in new versions).
const (
	maxBytes = 4 << 20
	maxDepth = 2048
)

// origin is how a token of the tree stood in the parsed text. A tree that is
// written again says the same in other bytes: quotes of attributes, character
// references, ends of lines, <a></a>. What nobody changed is written as it stood,
// since it is others' (Nova's metadata, a person's comment) and since not every
// reader takes two spellings for one.
type origin struct {
	text string // start tag of an element, else the whole token
	end  string // end tag of an element; empty where it had none (<a/>)

	attributes []etree.Attr // of the element, to tell a change
	data       string       // of character data, to tell a change
}

// read parses the document's text into its tree, with the origin of each token.
func (d *Doc) read() error {
	if len(d.text) > maxBytes {
		return fmt.Errorf("domain document: %d bytes, more than libvirt takes", len(d.text))
	}
	d.tree = etree.NewDocument()
	d.tree.WriteSettings.AttrSingleQuote = true // as libvirt writes
	d.tree.ReadSettings.PreserveCData = true
	d.tree.ReadSettings.MaxDepth = maxDepth
	if err := d.tree.ReadFromString(d.text); err != nil {
		return fmt.Errorf("domain document: %w", err)
	}
	if err := d.trace(); err != nil {
		return fmt.Errorf("domain document: %w", err)
	}
	return nil
}

// trace finds the origin of each token: the tree's reader keeps none, so the text
// is read once more, in step with the tree.
func (d *Doc) trace() error {
	d.origins = map[etree.Token]*origin{}
	type level struct {
		e    *etree.Element
		next int // child
	}
	stack := []level{{e: &d.tree.Element}}
	in := xml.NewDecoder(strings.NewReader(d.text))
	in.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil } // the tree's reader has judged it
	for {
		from := in.InputOffset()
		t, err := in.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text := d.text[from:in.InputOffset()]
		top := &stack[len(stack)-1]
		if _, end := t.(xml.EndElement); end {
			d.origins[top.e].end = text
			stack = stack[:len(stack)-1]
			continue
		}
		if top.next == len(top.e.Child) {
			return fmt.Errorf("%q was not expected", text)
		}
		child := top.e.Child[top.next]
		top.next++
		o := &origin{text: text}
		d.origins[child] = o
		switch c := child.(type) {
		case *etree.Element:
			o.attributes = slices.Clone(c.Attr)
			stack = append(stack, level{e: c})
		case *etree.CharData:
			o.data = c.Data
		}
	}
}

// cloneTree is a tree of its own that has the same origins.
func (d *Doc) cloneTree() (*etree.Document, map[etree.Token]*origin) {
	tree, origins := d.tree.Copy(), make(map[etree.Token]*origin, len(d.origins))
	var pair func(from, to *etree.Element)
	pair = func(from, to *etree.Element) {
		for i, c := range from.Child {
			if o := d.origins[c]; o != nil {
				origins[to.Child[i]] = o
			}
			if e, ok := c.(*etree.Element); ok {
				pair(e, to.Child[i].(*etree.Element))
			}
		}
	}
	pair(&d.tree.Element, &tree.Element)
	return tree, origins
}

// write appends tokens, each as it stood where it is what it was.
func (d *Doc) write(out *bytes.Buffer, tokens []etree.Token) {
	for _, t := range tokens {
		o := d.origins[t]
		switch t := t.(type) {
		case *etree.Element:
			d.writeElement(out, t, o)
			continue
		case *etree.CharData:
			if o != nil && o.data != t.Data {
				o = nil
			}
		}
		if o != nil {
			out.WriteString(o.text)
		} else {
			t.WriteTo(out, &d.tree.WriteSettings)
		}
	}
}

func (d *Doc) writeElement(out *bytes.Buffer, e *etree.Element, o *origin) {
	same := o != nil && slices.EqualFunc(e.Attr, o.attributes, func(a, b etree.Attr) bool {
		return a.Space == b.Space && a.Key == b.Key && a.Value == b.Value
	})
	open := o != nil && o.end != ""
	switch {
	case same && (open || len(e.Child) == 0):
		out.WriteString(o.text)
	case same: // it was empty
		out.WriteString(strings.TrimRight(strings.TrimSuffix(o.text, "/>"), " \t\r\n") + ">")
		open = true
	default:
		out.WriteString("<" + e.FullTag())
		for _, a := range e.Attr {
			out.WriteByte(' ')
			a.WriteTo(out, &d.tree.WriteSettings)
		}
		if open = open || len(e.Child) > 0; !open {
			out.WriteByte('/')
		}
		out.WriteByte('>')
	}
	d.write(out, e.Child)
	switch {
	case !open:
	case o != nil && o.end != "":
		out.WriteString(o.end)
	default:
		out.WriteString("</" + e.FullTag() + ">")
	}
}
