// Kernelformats extracts the formats of the lines that a kernel logs from its sources, for the families that the rules
// of the kernel's log must recognise:
//
//	go run ./test/kernelformats [-check] [-data DIR] linux-source-6.1.tar.xz|DIR ...
//
// It writes the formats of each family into a file, beside the versions that have them, and prints the additions,
// removals and changes of a version. A new format has no verdict ("?"): TestKernelFormats fails until the file says
// which rule recognises it, or that none may. With -check it writes no file, and a difference is an error.
//
// With -sample N it prints so many of all formats of the level of errors, or of another with -at, in the directories
// that servers have, chosen at random: the share that the rules recognise is how much of the kernel they see
// (pkg/detect/kernellog/testdata/sample.txt). With -levels FILE it prints the level that the sources give each line of
// a file.
//
// Debian has the sources in its packages linux-source-*; this tree does not contain them.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/nodeagent/nodeagent/test/kernelformats/formats"
)

func main() {
	check := flag.Bool("check", false, "only print the differences; exit with 1 where there are any")
	data := flag.String("data", "pkg/detect/kernellog/testdata/formats", "directory of the families' files")
	n := flag.Int("sample", 0, "only print so many of all formats of the level of errors, chosen at random")
	seed := flag.Uint64("seed", 1, "of the sample")
	at := flag.String("at", "error", "level of the sample: error, warning, below")
	lines := flag.String("levels", "", "only print the lines of this file, each after its level: error, warning, below, ?")
	flag.Parse()
	var changes int
	var err error
	switch {
	case *lines != "":
		err = printLevels(os.Stdout, flag.Args(), *lines)
	case *n > 0:
		err = printSample(os.Stdout, flag.Args(), *n, *seed, *at)
	default:
		changes, err = run(os.Stdout, *data, flag.Args(), !*check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernelformats:", err)
		os.Exit(2)
	}
	if *check && changes > 0 {
		os.Exit(1)
	}
}

// run returns how many formats differ from those in the data of the newest kernel before.
func run(out io.Writer, data string, sources []string, write bool) (changes int, err error) {
	if len(sources) == 0 {
		return 0, fmt.Errorf("name the sources of a kernel: an archive linux-source-X.Y.tar.xz, or a directory")
	}
	all := families()
	rows := make([][]formats.Row, len(all))
	for i, f := range all {
		if rows[i], err = formats.Read(data, f.name); err != nil {
			return 0, err
		}
	}
	for _, source := range sources {
		t, err := load(source, wanted(all))
		if err != nil {
			return changes, err
		}
		for i := range all {
			now := all[i].formats(&t)
			if len(now) == 0 {
				return changes, fmt.Errorf("%s: no format of family %s: were its files moved?", source, all[i].name)
			}
			d := compare(rows[i], now, t.version)
			d.print(out, all[i].name, t.version)
			changes += d.count()
			rows[i] = merge(rows[i], now, t.version)
		}
	}
	if !write {
		return changes, nil
	}
	for i, f := range all {
		if err := formats.Write(data, f.name, f.head(), rows[i]); err != nil {
			return changes, err
		}
	}
	return changes, nil
}
