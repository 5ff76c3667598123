// Command words counts habits of translated English in the comments and documents of a module, for each 1,000 words of
// them, by folder. It prints the folders that are above a limit, and never fails because of them.
//
//	words [-all] [DIR]
//
// The limits are those of native projects: "what" at most 3, "nobody" and "nothing" together at most 1, "that is", "that
// was" and "that has" together at most 2.
package main

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// habit is a word that is counted, and how many of it are usual in 1,000 words.
type habit struct {
	name  string
	words *regexp.Regexp
	limit float64
}

var habits = []habit{ //nolint:gochecknoglobals // a constant
	{"what", regexp.MustCompile(`(?i)\bwhat\b`), 3},
	{"nobody, nothing", regexp.MustCompile(`(?i)\b(nobody|nothing)\b`), 1},
	{"that is/was/has", regexp.MustCompile(`(?i)\bthat (is|was|has)\b`), 2},
}

var (
	word   = regexp.MustCompile(`\pL[\pL'’-]*`)
	fenced = regexp.MustCompile("(?ms)^ *```.*?^ *```|^    .*?$|`[^`\n]*`") // code is not prose
)

// counted are the words of a folder, and its habits in their order.
type counted struct {
	words int
	of    []int
}

func (c *counted) add(prose string) {
	if c.of == nil {
		c.of = make([]int, len(habits))
	}
	c.words += len(word.FindAllString(prose, -1))
	for i, h := range habits {
		c.of[i] += len(h.words.FindAllString(prose, -1))
	}
}

// rate is how often a habit stands in 1,000 words.
func (c *counted) rate(i int) float64 { return 1000 * float64(c.of[i]) / float64(max(c.words, 1)) }

func (c *counted) above() bool {
	const few = 200 // words, of which nothing follows
	above := false
	for i, h := range habits {
		above = above || c.words >= few && c.rate(i) > h.limit
	}
	return above
}

func main() {
	all := flag.Bool("all", false, "print all folders")
	flag.Parse()
	dir := "."
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	folders, err := count(os.DirFS(dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	report(os.Stdout, folders, *all)
}

// count reads the comments of all Go files and the prose of all documents, by folder. Files of testdata are no prose.
func count(tree fs.FS) (folders map[string]*counted, err error) {
	folders = map[string]*counted{}
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || len(entry.Name()) > 1 && entry.Name()[0] == '.'):
			return fs.SkipDir
		case entry.IsDir() || !slices.Contains([]string{".go", ".md"}, filepath.Ext(name)):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		prose := fenced.ReplaceAllString(string(text), "")
		if filepath.Ext(name) == ".go" {
			if prose, err = comments(name, text); err != nil {
				return err
			}
		}
		folder := filepath.Dir(name)
		if folders[folder] == nil {
			folders[folder] = &counted{}
		}
		folders[folder].add(prose)
		return nil
	})
	return folders, err
}

func comments(name string, text []byte) (string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	var prose strings.Builder
	for _, group := range file.Comments {
		prose.WriteString(group.Text()) // without directives
	}
	return prose.String(), nil
}

// report prints the folders, those with the most words first, and the sum.
func report(w io.Writer, folders map[string]*counted, all bool) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := "words\t"
	for _, h := range habits {
		head += fmt.Sprintf("%s (%g)\t", h.name, h.limit)
	}
	fmt.Fprintln(columns, head+"  folder")
	row := func(name string, c *counted) {
		line := fmt.Sprintf("%d\t", c.words)
		for i := range habits {
			line += fmt.Sprintf("%.1f\t", c.rate(i))
		}
		fmt.Fprintln(columns, line+"  "+name)
	}
	sum := counted{of: make([]int, len(habits))}
	for _, name := range slices.SortedFunc(maps.Keys(folders), func(a, b string) int {
		return folders[b].words - folders[a].words
	}) {
		c := folders[name]
		sum.words += c.words
		for i := range habits {
			sum.of[i] += c.of[i]
		}
		if all || c.above() {
			row(name, c)
		}
	}
	row("all", &sum)
	_ = columns.Flush()
}
