package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// domains returns the folders of pkg/detect with checks in them, and what people read: detect.Check.Domain.
func domains() map[string]string {
	return map[string]string{
		"cpu":        "cpu",
		"cri":        "kubernetes",
		"hardware":   "hardware",
		"kubernetes": "kubernetes",
		"memory":     "memory",
		"network":    "network",
		"storage":    "storage",
		"system":     "kernel",
		"systemd":    "kubernetes",
	}
}

const listFile = "pkg/detect/checks/checks.go"

// plan returns what a new check takes, the check's own file first.
func plan(root, id, folder string) ([]change, error) {
	d, ok := domains()[folder]
	if !ok {
		return nil, fmt.Errorf("DOMAIN=%s: must be one of %s", folder, strings.Join(slices.Sorted(maps.Keys(domains())),
			", "))
	}
	if err := checkID(id); err != nil {
		return nil, fmt.Errorf("ID=%s: %w", id, err)
	}
	n := names{ID: id, Folder: folder, Shown: d, Camel: camel(id)}
	if err := n.free(root); err != nil {
		return nil, fmt.Errorf("ID=%s: %w", id, err)
	}
	changed := []change{{"made", n.file(), n.fill(checkTemplate)}}
	for _, kind := range []string{"ok", "bad", "broken"} {
		changed = append(changed, change{"made", filepath.Join(n.fixtures(), kind+".txtar"),
			n.fill(fixtureTemplates()[kind])})
	}
	list, err := addLine(root, listFile, "list", folder+".", n.fill("simple(FOLDER.CAMEL),"))
	if err != nil {
		return nil, err
	}
	return append(changed, list), nil
}

// validID is kebab-case.
var validID = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

const longestID = 40

// checkID refuses what cannot be the ID of a new check.
func checkID(id string) error {
	switch file := strings.ReplaceAll(id, "-", "_") + ".go"; {
	case !validID.MatchString(id) || len(id) > longestID:
		return fmt.Errorf("must be words of a-z and 0-9, joined by hyphens, at most %d bytes", longestID)
	case strings.HasSuffix(id, "-test") || !builtEverywhere(file):
		return fmt.Errorf("go would not build %s on every system: choose another last word", file)
	}
	if slices.ContainsFunc(checks.Checks(checks.DefaultSettings(), checks.Deps{}), func(c detect.Check) bool {
		return c.ID == id
	}) {
		return fmt.Errorf("there is such a check")
	}
	if slices.ContainsFunc(slices.Concat(rules.Kernel(), rules.Daemons()), func(r rules.Rule) bool {
		return r.ID == id
	}) {
		return fmt.Errorf("there is such a rule of the kernel's or the daemons' log")
	}
	return nil
}

// builtEverywhere reports whether no system or processor is read out of a file's name: disk_arm64.go.
func builtEverywhere(file string) bool {
	nowhere := build.Context{GOOS: "none", GOARCH: "none", Compiler: "gc", OpenFile: func(string) (io.ReadCloser,
		error) {
		return io.NopCloser(strings.NewReader("package p\n")), nil
	}}
	match, err := nowhere.MatchFile("", file)
	return err == nil && match
}

// names are what a check is called in its files.
type names struct {
	ID     string // disk-glitter
	Folder string // storage
	Shown  string // storage
	Camel  string // DiskGlitter
}

func camel(id string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(id, "-") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func (n names) file() string {
	return filepath.Join("pkg/detect", n.Folder, strings.ReplaceAll(n.ID, "-", "_")+".go")
}

func (n names) fixtures() string { return filepath.Join("pkg/detect", n.Folder, "testdata", n.ID) }

func (n names) fill(template string) string {
	return strings.NewReplacer("FOLDER", n.Folder, "SHOWN", n.Shown, "CAMEL", n.Camel, "CHECKID", n.ID).
		Replace(template)
}

// free refuses a check whose files or names its folder has already.
func (n names) free(root string) error {
	for _, name := range []string{n.file(), n.fixtures()} {
		if _, err := os.Lstat(filepath.Join(root, name)); err == nil {
			return fmt.Errorf("there is %s", name)
		}
	}
	files, err := filepath.Glob(filepath.Join(root, "pkg/detect", n.Folder, "*.go"))
	if err != nil {
		return err
	}
	mine := []string{n.Camel, "read" + n.Camel}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		for _, name := range declared(parsed) {
			if slices.Contains(mine, name) {
				return fmt.Errorf("%s declares %s", file, name)
			}
		}
	}
	return nil
}

// declared are the names that a file declares in its package.
func declared(file *ast.File) []string {
	var found []string
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				found = append(found, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					found = append(found, s.Name.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						found = append(found, name.Name)
					}
				}
			}
		}
	}
	return found
}

// addLine returns a file with a line more in the list that a function returns: below the last one that mentions a text.
func addLine(root, name, function, mentions, line string) (change, error) {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return change{}, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, 0)
	if err != nil {
		return change{}, err
	}
	offset := 0
	for _, e := range returned(file, function) {
		start, end := fset.Position(e.Pos()).Offset, fset.Position(e.End()).Offset
		if strings.Contains(string(text[start:end]), mentions) {
			offset = end
		}
	}
	if offset == 0 {
		return change{}, fmt.Errorf("%s: no list with %q in it", name, mentions)
	}
	before, after, _ := strings.Cut(string(text[offset:]), "\n")
	return change{"added a line to", name, string(text[:offset]) + before + "\n\t\t" + line + "\n" + after}, nil
}

// returned are the elements of the literal that a function returns: that of the name, or the file's only one.
func returned(file *ast.File, function string) []ast.Expr {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || function != "" && f.Name.Name != function {
			continue
		}
		for _, statement := range f.Body.List {
			r, ok := statement.(*ast.ReturnStmt)
			if !ok || len(r.Results) != 1 {
				continue
			}
			if literal, ok := r.Results[0].(*ast.CompositeLit); ok {
				return literal.Elts
			}
		}
	}
	return nil
}
