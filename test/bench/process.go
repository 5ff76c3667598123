package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cost is a process's use of the machine. Memory is in KiB.
type cost struct {
	at                 time.Time
	cpu                time.Duration // of its children, too
	rss, pss, peak     int
	anonymous          int // heap and stacks
	file               int // resident pages of files: those of the program
	working            int // the value that kubelet reports for its container
	threads, fds, kmsg int // kmsg: descriptors of /dev/kmsg
}

// target is a measured process, in a cgroup of its own.
type target struct {
	pid   int
	group *group
}

func (t target) measure() (c cost, err error) {
	dir := fmt.Sprintf("/proc/%d", t.pid)
	used, err := t.group.used()
	if err != nil {
		return cost{}, err
	}
	working, err := t.group.workingSet()
	if err != nil {
		return cost{}, err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return cost{}, err
	}
	maps, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return cost{}, err
	}
	c = cost{
		at: time.Now(), cpu: used, working: working, threads: field(status, "Threads:"), pss: field(maps, "Pss:"),
		rss: field(maps, "Rss:"), anonymous: field(maps, "Anonymous:"), peak: field(status, "VmHWM:"),
	}
	c.file = c.rss - c.anonymous
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	c.fds = len(fds)
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "/dev/kmsg" {
			c.kmsg++
		}
	}
	return c, err
}

// field returns the number behind a name that begins a line.
func field(text []byte, name string) int {
	_, after, _ := strings.Cut("\n"+string(text), "\n"+name)
	n, _ := strconv.Atoi(strings.Fields(after + " 0")[0])
	return n
}

// series holds the agent's own metrics: each line of /metrics without its value, and the value.
type series map[string]float64

// metrics reads the agent's own metrics.
func metrics(ctx context.Context) (series, error) {
	// as the harness configures it
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10681/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	s := series{}
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), "} ")
		if name == string(bytes.TrimSpace(line)) { // no labels
			name, value, _ = strings.Cut(name, " ")
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			s[name] = v
		}
	}
	return s, nil
}

// sum adds up all series of a metric.
func (s series) sum(metric string) float64 {
	total := 0.0
	for name, value := range s {
		if base, _, _ := strings.Cut(name, "{"); base == metric {
			total += value
		}
	}
	return total
}
