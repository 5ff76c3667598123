// Command image builds a container image without docker: from scratch, with the one static program.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/packaging/image/oci"
)

const usage = `usage: image [-o FILE] [-ref NAME:TAG] [-version V] [-created TIME] PROGRAM...

Writes an image of the program as an archive for "ctr images import", "podman load" and "docker load". Several programs
for different platforms become one multi-platform image; docker loads only images for one.
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(2)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	file := flags.String("o", "nodeagent.tar", "archive to write")
	image := oci.Image{Created: time.Unix(0, 0).UTC(),
		Source: "https://github.com/nodeagent/nodeagent"}
	flags.StringVar(&image.Reference, "ref", "localhost/nodeagent:dev", "name and tag of the image")
	flags.StringVar(&image.Path, "path", "/usr/bin/nodeagent", "of the program in the image")
	flags.StringVar(&image.Version, "version", "dev", "version of the program")
	flags.Func("created", "when the program was built, such as 2026-01-31T12:00:00Z (default: 1970)",
		func(s string) (err error) {
			image.Created, err = time.Parse(time.RFC3339, s)
			image.Created = image.Created.UTC()
			return err
		})
	if err := flags.Parse(args); err != nil {
		return err
	}
	var programs []oci.Program
	for _, name := range flags.Args() {
		program, err := oci.ReadProgram(name)
		if err != nil {
			return err
		}
		programs = append(programs, program)
	}
	if err := write(*file, image, programs); err != nil {
		return err
	}
	info, err := os.Stat(*file)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: image %s, %.1f MB\n", *file, image.Reference, float64(info.Size())/1e6)
	return err
}

// write replaces the file only when the archive is whole.
func write(name string, image oci.Image, programs []oci.Program) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), ".image-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(image.Write(file, programs...), file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}
