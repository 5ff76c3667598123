package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// hugepages compares the configured huge pages with those of the kernel:
//
//	/proc/cmdline                              … hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=512
//	/etc/sysctl.conf, sysctl.d/*.conf          vm.nr_hugepages = 512         of the default size
//	/proc/meminfo                              Hugepagesize:       2048 kB   the default size
//	/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages    512
//
// https://docs.kernel.org/admin-guide/mm/hugetlbpage.html, sysctl.d(5). sysctl overrides the command line, since it
// comes later, but only for the default size. Sizes of "hugepages=0:2,1:2" (by NUMA node, Linux 5.17) are added up.

const hugepagesDir = "/sys/kernel/mm/hugepages"

// Hugepages finds nodes that have fewer huge pages than they were configured to have.
func Hugepages() detect.Check {
	return detect.Check{
		ID: "hugepages", Domain: "memory",
		Summary: "the node has fewer huge pages than it is configured to have",
		Advice: "Reserve them on the kernel's command line (hugepagesz= hugepages=): later, memory is too " +
			"fragmented. Until the next boot, `echo N > /sys/kernel/mm/hugepages/hugepages-SIZE/nr_hugepages` may " +
			"yield some more; restart kubelet so that it counts them.",
		Doc: detect.Doc{
			Reads: []string{"/proc/cmdline", "/etc/sysctl.conf, /etc/sysctl.d, /run/sysctl.d, /usr/lib/sysctl.d",
				"/sys/kernel/mm/hugepages/*/nr_hugepages"},
			Why: "Pods that request huge pages stay pending, or are scheduled by a capacity that kubelet counted " +
				"when there were more. The kernel logs one line only when it finds too little contiguous memory for " +
				"them.",
			Faults: []detect.Fault{{Reason: "HugepagesMissing", Severity: finding.Warning,
				When: "there are fewer than the command line or sysctl configures"}},
			FalseAlarms: "Huge pages that an administrator released by hand. Pages that were reserved by hand or by " +
				"a tuning daemon are not known.",
		},
		Every: 10 * time.Minute, Deadline: 5 * time.Second,
		Run: checkHugepages,
	}
}

func checkHugepages(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	files := h.Files
	if _, err := files.Stat(hugepagesDir); errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("the kernel has no huge pages")
	}
	info, err := checkkit.ReadMeminfo(files)
	if err != nil {
		return nil, err
	}
	cmdline, err := files.Text("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	wanted := hugepagesOfCmdline(cmdline, info["Hugepagesize"])
	if pages, ok := hugepagesOfSysctl(files); ok {
		wanted[info["Hugepagesize"]] = pages
	}
	var results checkkit.Results
	for size, want := range wanted {
		pool := fmt.Sprintf("hugepages-%dkB", size>>10)
		subject := finding.Subject{Kind: "hugepage-pool", Name: pool}
		have, err := checkkit.ReadCount(files, path.Join(hugepagesDir, pool, "nr_hugepages"))
		switch {
		case err != nil:
			results.Doubt(subject, err)
		case have < want:
			results.Add(finding.Finding{
				Subject: subject, Severity: finding.Warning, Reason: "HugepagesMissing",
				Message: fmt.Sprintf("%d of %d configured huge pages of %s exist", have, want, checkkit.SizeText(size)),
				Facts:   map[string]string{"configured": fmt.Sprint(want), "present": fmt.Sprint(have)},
			}, true)
		}
	}
	return results.Done()
}

// hugepagesOfCmdline returns the number of huge pages by their size in bytes. Like the kernel, it skips parameters that
// it does not understand.
func hugepagesOfCmdline(cmdline string, defaultSize uint64) map[uint64]uint64 {
	wanted := make(map[uint64]uint64)
	size := defaultSize
	for word := range strings.FieldsSeq(cmdline) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "hugepagesz", "default_hugepagesz":
			if bytes, ok := memparse(value); ok {
				size = bytes
			}
		case "hugepages":
			if pages, ok := hugepageCount(value); ok {
				wanted[size] = pages
			}
		}
	}
	return wanted
}

// hugepageCount parses "512" and, by NUMA node, "0:2,1:2".
func hugepageCount(text string) (uint64, bool) {
	sum := uint64(0)
	for part := range strings.SplitSeq(text, ",") {
		_, count, byNode := strings.Cut(part, ":")
		if !byNode {
			count = part
		}
		pages, err := strconv.ParseUint(count, 10, 40)
		if err != nil {
			return 0, false
		}
		sum += pages
	}
	return sum, true
}

// memparse parses sizes in the format of the kernel's command line: 2M, 1G, 1048576.
func memparse(text string) (uint64, bool) {
	shift := 0
	if text != "" {
		shift = 10 * (strings.IndexByte("kmgt", text[len(text)-1]|0x20) + 1)
	}
	if shift > 0 {
		text = text[:len(text)-1]
	}
	number, err := strconv.ParseUint(text, 0, 54-shift)
	return number << shift, err == nil && number > 0
}

// hugepagesOfSysctl returns the vm.nr_hugepages that sysctl's files set at boot.
func hugepagesOfSysctl(files host.Files) (uint64, bool) {
	_, word := checkkit.SysctlWord(files, "vm.nr_hugepages")
	pages, err := strconv.ParseUint(strings.TrimSpace(word), 10, 40)
	return pages, err == nil
}
