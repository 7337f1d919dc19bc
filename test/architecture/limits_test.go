package architecture

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// limits are how large a part of the product may be; tests and package test have none.
var limits = map[string]int{
	"methods":   60,   // of a type
	"interface": 15,   // methods of an interface
	"files":     30,   // of a package
	"lines":     6000, // of a package
	"function":  100,  // lines of a function
}

// exception is a part that is larger, and may not grow.
type exception struct {
	most int
	why  string
}

// size is a part by its kind and name: "methods agent/host.Host".
type sizes map[string]int

// measure gives the sizes of all parts of the tree at root.
func measure(root string) (sizes, error) {
	out := sizes{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && path != root && (strings.HasPrefix(name, ".") || strings.HasSuffix(name, "test") || slices.Contains([]string{"testdata", "build", "bin"}, name)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		out["files "+dir]++
		out["lines "+dir] += strings.Count(string(text), "\n")
		for _, decl := range f.Decls {
			out.declaration(fset, dir, decl)
		}
		return nil
	})
	return out, err
}

func (s sizes) declaration(fset *token.FileSet, dir string, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		name := decl.Name.Name
		if decl.Recv != nil {
			receiver := receiverOf(decl.Recv.List[0].Type)
			s["methods "+dir+"."+receiver]++
			name = receiver + "." + name
		}
		s["function "+dir+"."+name] = fset.Position(decl.End()).Line - fset.Position(decl.Pos()).Line + 1
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			t, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			if i, ok := t.Type.(*ast.InterfaceType); ok {
				s["interface "+dir+"."+t.Name.Name] = i.Methods.NumFields()
			}
		}
	}
}

func receiverOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverOf(e.X)
	case *ast.IndexExpr:
		return receiverOf(e.X)
	case *ast.IndexListExpr:
		return receiverOf(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// over lists what is larger than its limit or its exception, and exceptions that are not needed or
// whose figure is a tenth above the part's size.
func over(found sizes, allowed map[string]exception) []string {
	var out []string
	for _, part := range slices.Sorted(maps.Keys(found)) {
		kind, _, _ := strings.Cut(part, " ")
		n, limit := found[part], limits[kind]
		x, excepted := allowed[part]
		switch {
		case excepted && n <= limit:
			out = append(out, fmt.Sprintf("%s is %d, at most %d: remove its exception", part, n, limit))
		case n > cmp.Or(x.most, limit):
			out = append(out, fmt.Sprintf("%s is %d, at most %d: redesign it before it grows", part, n, cmp.Or(x.most, limit)))
		case excepted && n < x.most-x.most/10:
			out = append(out, fmt.Sprintf("%s is %d: lower its exception from %d", part, n, x.most))
		}
	}
	for _, part := range slices.Sorted(maps.Keys(allowed)) {
		if found[part] == 0 {
			out = append(out, part+" has an exception and is not there")
		}
	}
	return out
}

func TestLimits_HoldButForNamedExceptions(t *testing.T) {
	t.Parallel()
	found, err := measure(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range over(found, exceptions) {
		t.Error(fault)
	}
}

func TestLimits_TheTestCanFail(t *testing.T) {
	t.Parallel()
	allowed := map[string]exception{"lines a": {7000, "old"}, "files b": {40, "old"}, "methods c.T": {90, "old"}, "methods gone.T": {90, "old"}}
	found := sizes{"lines a": 7001, "files b": 30, "methods c.T": 70, "interface d.I": 16, "function d.f": 100}
	want := []string{
		"files b is 30, at most 30: remove its exception",
		"interface d.I is 16, at most 15: redesign it before it grows",
		"lines a is 7001, at most 7000: redesign it before it grows",
		"methods c.T is 70: lower its exception from 90",
		"methods gone.T has an exception and is not there",
	}
	if got := over(found, allowed); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
