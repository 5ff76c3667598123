// Package checkkit is the shared code of checks: counter windows, text for messages, subjects, numbers of files,
// cgroups, kubelet.
//
// Checks parse the files of /proc and /sys themselves, some twenty lines for each. github.com/prometheus/procfs v0.20.1
// was compared: it opens the files itself, without the bounds and the root of host.Files; its parsers of swaps, sockstat
// and buddyinfo take negative numbers, and that of softnet_stat drops an error of reading; its errors do not quote the
// line. Adapters to its types would be nearly as long as the parsers.
package checkkit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	MaxLine     = 100 // bytes of a line from outside in a message
	MaxName     = 80  // bytes of a name from outside
	MaxReported = 300 // bytes of a text of kubelet or the runtime
)

// Sanitize shortens text from outside for a message: see hosterr.Sanitize.
func Sanitize(text string, most int) string { return hosterr.Sanitize(text, most) }

// AddAffectedPods adds the affected pods to a finding.
func AddAffectedPods(f *finding.Finding, pods []string) {
	AddPods(f, fmt.Sprintf("; hits %d pods: ", len(pods)), pods)
}

// AddPods adds pods to a finding, after words that describe the relation.
func AddPods(f *finding.Finding, words string, pods []string) {
	if len(pods) == 0 {
		return
	}
	f.Facts["pods"], f.Facts["podCount"] = finding.JoinFirst(pods, 20), strconv.Itoa(len(pods))
	f.Message += words + finding.JoinFirst(pods, 5)
}

// AddNeededFor adds the paths for which the node needs a disk to a finding.
func AddNeededFor(f *finding.Finding, paths []string) {
	if len(paths) == 0 {
		return
	}
	f.Facts["needed"] = strings.Join(paths, ", ")
	f.Message += "; the node needs it for " + strings.Join(paths, ", ")
}

// Largest returns the keys, the one with the greatest value first.
func Largest(amount map[string]float64) []string {
	return slices.SortedFunc(maps.Keys(amount), func(a, b string) int {
		return cmp.Or(-cmp.Compare(amount[a], amount[b]), cmp.Compare(a, b))
	})
}
