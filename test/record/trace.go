package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"
)

// A line of strace -f -xx: the process, the call, its arguments, its result.
var (
	callLine   = regexp.MustCompile(`^(\d+) +(\w+)\((.*)\) += (-?\d+)`)
	unfinished = regexp.MustCompile(`^(\d+) +(.*) <unfinished \.\.\.>$`)
	resumed    = regexp.MustCompile(`^(\d+) +<\.\.\. \w+ resumed>(.*)$`)
	quoted     = regexp.MustCompile(`"((?:\\x[0-9a-f]{2})*)"`)
)

// secret matches private keys, JSON Web Tokens, and the credentials in a kubeconfig.
var secret = regexp.MustCompile(`PRIVATE KEY|\beyJ[\w-]+\.[\w-]+\.|(?m)^[\s-]*"?(token|password|client-key-data)"?:`)

// parseTrace returns the files that were read between the marks in a trace, as those of a fixture. A file that is
// the same in the second run is not repeated.
func parseTrace(trace io.Reader) ([]txtar.File, error) {
	t := tracedFiles{open: map[string]string{}, pending: map[string]string{}}
	lines := bufio.NewReader(trace)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return t.files(), nil
		}
		if err != nil {
			return nil, err
		}
		line = strings.TrimSuffix(line, "\n")
		if m := unfinished.FindStringSubmatch(line); m != nil {
			t.pending[m[1]] = m[2]
			continue
		}
		if m := resumed.FindStringSubmatch(line); m != nil {
			line = m[1] + " " + t.pending[m[1]] + m[2]
		}
		if m := callLine.FindStringSubmatch(line); m != nil {
			t.call(m[2], m[3], m[4])
		}
	}
}

type tracedFiles struct {
	runs    []tracedRun
	ended   bool
	open    map[string]string // the path by file descriptor
	pending map[string]string // the begin of an unfinished line, by process
}

type tracedRun struct {
	prefix string // of the names in the fixture
	read   map[string][]byte
}

func (t *tracedFiles) call(call, arguments, result string) {
	var texts []string
	for _, m := range quoted.FindAllStringSubmatch(arguments, -1) {
		text, _ := hex.DecodeString(strings.ReplaceAll(m[1], `\x`, ""))
		texts = append(texts, string(text))
	}
	if len(texts) == 0 {
		return
	}
	name := texts[0]
	if prefix, ok := strings.CutPrefix(name, strings.TrimSuffix(firstRun, "/")); ok {
		t.runs = append(t.runs, tracedRun{strings.TrimPrefix(prefix, "/"), map[string][]byte{}})
		return
	}
	t.ended = t.ended || name == endOfRuns
	if len(t.runs) == 0 || t.ended || strings.HasPrefix(result, "-") {
		return
	}
	read := t.runs[len(t.runs)-1].read
	switch call {
	case "openat":
		if t.open[result] = name; isFile(name) {
			read[name] = nil
		} else if strings.HasPrefix(name, "/sys/") {
			addLinks(name, read)
		}
	case "read", "pread64":
		fd, _, _ := strings.Cut(arguments, ",")
		if name := t.open[fd]; isFile(name) {
			read[name] = append(read[name], texts[0]...)
		}
	case "readlinkat", "readlink":
		read[name+"@"] = []byte(texts[1])
	default: // stat
		if _, ok := read[name]; !ok && isFile(name) {
			read[name] = nil
		}
	}
}

// addLinks adds the links in a directory that was listed: each stands for a device.
func addLinks(dir string, links map[string][]byte) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if target, err := os.Readlink(name); err == nil && !path.IsAbs(target) {
			links[name+"@"] = []byte(target)
		}
	}
}

// isFile also reports a file that has vanished since: of a process that ended.
func isFile(name string) bool {
	info, err := os.Stat(name)
	return path.IsAbs(name) && (err != nil || info.Mode().IsRegular())
}

func (t *tracedFiles) files() []txtar.File {
	var files []txtar.File
	written := map[string][]byte{}
	for _, run := range t.runs {
		named := map[string][]byte{}
		for name, data := range run.read {
			if secret.Match(data) {
				fmt.Fprintln(os.Stderr, "record: left out, it has a key or a token:", name)
				continue
			}
			named[t.resolve(name, named)] = data
		}
		for _, name := range slices.Sorted(maps.Keys(named)) {
			old, ok := written[name]
			if link, isLink := strings.CutSuffix(name, "@"); ok && isLink && !bytes.Equal(old, named[name]) {
				files = append(files, txtar.File{Name: path.Join(run.prefix, link[1:]+"!")})
			}
			if !ok || !bytes.Equal(old, named[name]) {
				files = append(files, txtar.File{Name: path.Join(run.prefix, name[1:]), Data: named[name]})
			}
			written[name] = named[name]
		}
	}
	return files
}

// resolve adds the relative links on the way to a file, and returns where it is behind them.
func (t *tracedFiles) resolve(name string, links map[string][]byte) string {
	at, rest := "/", strings.Split(name[1:], "/")
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if target, err := os.Readlink(next); err == nil && len(rest) > 0 && !path.IsAbs(target) {
			links[next+"@"] = []byte(target)
			next = filepath.Join(at, target)
		}
		at = next
	}
	return at
}
