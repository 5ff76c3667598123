// Command record runs one check on this machine and writes a fixture of what it read:
//
//	go run ./test/record ID [-again 30s] [FILE]
//
// The files, links and probes come from strace and are exactly what the check received; want.json is what it reported.
// With -again it runs twice, for checks that compare counters. The clock and the paths are those of fixtures
// (pkg/detect/checks/fixtures_test.go). Names, serials and addresses in the result must be replaced by hand. The check
// gets no client of kubelet and of the apiserver, so that no credentials of this machine are used, and files with a
// private key or a token are left out. Needs root and strace. The written file is FILE, or standard output.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func main() {
	again := flag.Duration("again", 0, "run the check a second time after this long")
	traced := flag.Bool("traced", false, "run the check: record starts itself so, below strace")
	flag.Parse()
	id := flag.Arg(0)
	_ = flag.CommandLine.Parse(flag.Args()[min(1, flag.NArg()):]) // flags may follow the ID
	var err error
	switch {
	case id == "":
		err = errors.New("usage: record ID [-again 30s] [FILE]")
	case *traced:
		err = runCheck(id, *again)
	default:
		err = record(id, *again, flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

// record writes the fixture of one check to a file.
func record(id string, again time.Duration, file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	trace, err := os.CreateTemp("", "record-*.strace")
	if err != nil {
		return err
	}
	defer os.Remove(trace.Name())
	defer trace.Close()
	cmd := exec.Command("strace", "-f", "-b", "execve", "-xx", "-s", "16777216", "-o", trace.Name(), "-e",
		"trace=openat,read,pread64,readlinkat,readlink,newfstatat,statx", self, "-traced", "-again", again.String(), id)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("strace: %w", err)
	}
	var archive txtar.Archive
	if err := json.Unmarshal(out, &archive); err != nil {
		return fmt.Errorf("what the check reported: %w", err)
	}
	files, err := parseTrace(trace)
	if err != nil {
		return err
	}
	archive.Files = slices.Concat(files, archive.Files)
	archive.Comment = fmt.Appendf(nil, "Source: recorded %s on %s.\n", time.Now().Format(time.DateOnly), system())
	if file == "" {
		_, err = os.Stdout.Write(txtar.Format(&archive))
		return err
	}
	return os.WriteFile(file, txtar.Format(&archive), 0o644)
}

// system names this machine's kernel and distribution.
func system() string {
	var name unix.Utsname
	_ = unix.Uname(&name)
	release, _ := os.ReadFile("/etc/os-release")
	_, pretty, _ := strings.Cut(string(release), `PRETTY_NAME="`)
	pretty, _, _ = strings.Cut(pretty, `"`)
	version, _, _ := strings.Cut(unix.ByteSliceToString(name.Release[:]), "-")
	if _, debian, ok := strings.Cut(unix.ByteSliceToString(name.Version[:]), "Debian "); ok { // the release has x.y.0
		version, _, _ = strings.Cut(debian, "-")
	}
	return fmt.Sprintf("Linux %s (%s, %s)", version, unix.ByteSliceToString(name.Machine[:]), pretty)
}

// Names that are stated so that the trace shows where a run begins.
const (
	firstRun  = "/record/run/"
	secondRun = "/record/run/+"
	endOfRuns = "/record/end"
)

// runCheck runs the check and prints, as an archive in JSON, what is not in the trace: probes and want.json.
func runCheck(id string, again time.Duration) error {
	clients, err := agent.OpenHost(config.Config{}, nil)
	if err != nil {
		return err
	}
	h, after := clients.Host, time.Duration(0)
	h.Cluster, h.Kubelet.Pods, h.Kubelet.Scrape = host.Cluster{}, nil, nil // they use discovered credentials
	h.NodeName, h.Paths = "fixture", discover.DefaultPaths()
	h.Paths.InitPID = 1
	h.Clock = func() finding.Timestamp { // as checktest.FixtureHost has it
		return finding.Timestamp{Wall: time.Date(2026, 11, 21, 2, 0, 0, 0, time.UTC).Add(after), Boot: "fixture",
			SinceBoot: time.Hour + after}
	}
	probes, do := map[string]probe.ProbeAnswer{}, h.Prober.Do
	h.Prober = probe.Prober{Do: func(ctx context.Context, r probe.ProbeRequest) (probe.ProbeAnswer, error) {
		answer, err := do(ctx, r)
		probes[r.Path] = answer
		return answer, err
	}}
	sources := &detect.StateSources{}
	all := agent.Checks(config.Default(), h, checks.Deps{Sources: sources})
	sources.Enable(all)
	i := slices.IndexFunc(all, func(c detect.Check) bool { return c.ID == id })
	if i < 0 {
		return fmt.Errorf("no check %s", id)
	}
	_, _ = os.Lstat(firstRun)
	findings, err := all[i].Run(context.Background(), h)
	if again > 0 {
		time.Sleep(again)
		after = again
		_, _ = os.Lstat(secondRun + again.String())
		findings, err = all[i].Run(context.Background(), h)
	}
	_, _ = os.Lstat(endOfRuns)
	var archive txtar.Archive
	if len(probes) > 0 {
		archive.Files = append(archive.Files, txtar.File{Name: "clients/probe.json", Data: indented(probes)})
	}
	archive.Files = append(archive.Files, txtar.File{Name: "want.json", Data: indented(want(findings, err))})
	return json.NewEncoder(os.Stdout).Encode(archive)
}

// want is what want.json of a fixture says.
func want(findings []finding.Finding, err error) map[string]any {
	w := map[string]any{}
	if len(findings) > 0 {
		if findings[0].BelowRaise {
			w["marginal"] = true
		}
		for i := range findings {
			findings[i].BelowRaise = false
		}
		slices.SortFunc(findings, finding.Compare)
		w["findings"] = findings
	}
	if _, ok := errors.AsType[*finding.NotApplicableError](err); ok {
		w["notApplicable"] = true
	} else if partial, ok := errors.AsType[*finding.PartialError](err); ok {
		var unknown []string
		for subject := range partial.Subjects {
			unknown = append(unknown, subject.String())
		}
		slices.Sort(unknown)
		w["unknown"] = unknown
	} else if err != nil {
		w["error"] = err.Error()
	}
	return w
}

func indented(v any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "\t")
	_ = encoder.Encode(v)
	return out.Bytes()
}
