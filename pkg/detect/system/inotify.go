package system

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// inotify creates an inotify instance and a watch on /, and closes them at once. If the kernel refuses one, it reads
//
//	/proc/sys/fs/inotify/{max_user_instances,max_user_watches}    128
//
// https://man7.org/linux/man-pages/man7/inotify.7.html
//
// The kernel counts both for each user and does not show the counts: adding up the descriptors and fdinfo of all
// processes would cost more than all other checks together. Kubelet, the runtime and most containers share root's
// limit.

// Inotify finds nodes on which root cannot create inotify instances or watches.
func Inotify() detect.Check {
	return detect.Check{
		ID: "inotify", Domain: "kernel",
		Summary: "root has reached its limit of inotify instances or watches",
		Advice: "Raise fs.inotify.max_user_instances (8192 is usual on large nodes) or fs.inotify.max_user_watches " +
			"(524288) with sysctl and a file in /etc/sysctl.d. List the processes with the most instances: `find " +
			"/proc/*/fd -lname anon_inode:inotify 2>/dev/null | cut -d/ -f3 | sort | uniq -c | sort -n | tail`.",
		Doc: detect.Doc{
			Reads: []string{"inotify_init1(2) and inotify_add_watch(2), closed at once",
				"/proc/sys/fs/inotify/{max_user_instances,max_user_watches}"},
			Why: "Kubelet, the runtime, kubectl logs -f and many programs in pods watch files. Without an instance " +
				"they fail with \"too many open files\", without a watch with \"no space left on device\"; a kubelet " +
				"that restarts then does not come up.",
			Faults: []detect.Fault{
				{Reason: "InotifyInstancesExhausted", Severity: finding.Warning,
					When: "the kernel refuses root another instance: running programs are not affected, starting " +
						"ones may fail"},
				{Reason: "InotifyWatchesExhausted", Severity: finding.Warning,
					When: "the kernel refuses root another watch"},
			},
			FalseAlarms: "None. Not detected: other users at their own limit, and how close a limit is.",
		},
		Every: 5 * time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			if h.Inotify == nil {
				return nil, fmt.Errorf("inotify: %w", hosterr.ErrNotConfigured)
			}
			room, err := h.Inotify()
			if err != nil {
				return nil, err
			}
			switch {
			case !room.Instances:
				return inotifyFinding(h, "InotifyInstancesExhausted", "instance", "max_user_instances")
			case !room.Watches:
				return inotifyFinding(h, "InotifyWatchesExhausted", "watch", "max_user_watches")
			}
			return nil, nil
		},
	}
}

func inotifyFinding(h *host.Host, reason, what, limit string) ([]finding.Finding, error) {
	value, err := h.Files.Text("/proc/sys/fs/inotify/" + limit)
	if err != nil {
		value = "unknown" // the refusal alone is the fault
	}
	value = checkkit.Sanitize(value, 32)
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf("root cannot create another inotify %s: fs.inotify.%s is %s", what, limit, value),
		Facts:   map[string]string{"limit": value},
	}}, nil
}
