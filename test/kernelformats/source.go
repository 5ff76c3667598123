package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// maxFile bounds one file of the sources: larger ones are generated register lists, which print no lines.
const maxFile = 4 << 20

// tree holds the files of one kernel's sources that the families need, by path.
type tree struct {
	version string // "6.1"
	files   map[string]string
}

// load reads a directory, or an archive that tar and xz made.
func load(source string, wanted func(path string) bool) (tree, error) {
	t := tree{files: map[string]string{}}
	info, err := os.Stat(source)
	if err != nil {
		return t, err
	}
	if info.IsDir() {
		err = t.loadDir(source, wanted)
	} else {
		err = t.loadArchive(source, wanted)
	}
	if err != nil {
		return t, fmt.Errorf("%s: %w", source, err)
	}
	if t.version = versionOf(t.files["Makefile"]); t.version == "" {
		return t, fmt.Errorf("%s: its Makefile names no version: are these the sources of a kernel?", source)
	}
	return t, nil
}

func (t *tree) loadDir(root string, wanted func(string) bool) error {
	return fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !entry.Type().IsRegular() || !wanted(name) {
			return err
		}
		file, err := os.Open(filepath.Join(root, name)) //nolint:gosec // of the directory that was asked for
		if err != nil {
			return err
		}
		defer file.Close() // was only read
		return t.add(name, file)
	})
}

func (t *tree) loadArchive(name string, wanted func(string) bool) error {
	xz := exec.Command("xz", "--decompress", "--stdout", "--", name) //nolint:gosec // a name, not a command
	xz.Stderr = os.Stderr
	out, err := xz.StdoutPipe()
	if err != nil {
		return err
	}
	if err := xz.Start(); err != nil {
		return err
	}
	readErr := t.readTar(out, wanted)
	if readErr != nil {
		_ = xz.Process.Kill() // its reader is gone
	}
	return errors.Join(readErr, xz.Wait())
}

func (t *tree) readTar(r io.Reader, wanted func(string) bool) error {
	for archive := tar.NewReader(r); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r) // padding, so that xz ends well
			return err
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(strings.TrimPrefix(head.Name, "./"), "/") // the first is the name of the release
		if head.Typeflag == tar.TypeReg && wanted(name) {
			if err := t.add(name, archive); err != nil {
				return err
			}
		}
	}
}

func (t *tree) add(name string, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(data) <= maxFile {
		t.files[name] = string(data)
	}
	return err
}

var versionLine = regexp.MustCompile(`(?m)^(VERSION|PATCHLEVEL) = (\d+)$`)

// versionOf returns the version in the kernel's own Makefile, "6.1"; empty if there is none.
func versionOf(makefile string) string {
	found := versionLine.FindAllStringSubmatch(makefile, 2)
	if len(found) != 2 {
		return ""
	}
	return found[0][2] + "." + found[1][2]
}

var (
	continued = regexp.MustCompile(`\\\n\s*`)
	composite = regexp.MustCompile(`(?m)^([\w-]+?)-(?:objs|y|m|\$\([^)]*\))(?:-\$\([^)]*\))?\s*[:+]?=(.*)$`)
)

// module returns the name of the module to which a file belongs (KBUILD_MODNAME), by the Makefiles above it.
func (t *tree) module(file string) string {
	object := strings.TrimSuffix(path.Base(file), path.Ext(file)) + ".o"
	name := strings.TrimSuffix(object, ".o")
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		makefile := continued.ReplaceAllString(t.files[dir+"/Makefile"], " ")
		for _, line := range composite.FindAllStringSubmatch(makefile, -1) {
			for member := range strings.FieldsSeq(line[2]) {
				if member == object && line[1] != "obj" && line[1] != "lib" {
					return strings.ReplaceAll(line[1], "-", "_")
				}
			}
		}
		object = path.Base(dir) + "/" + object
	}
	return strings.ReplaceAll(name, "-", "_")
}
