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

// inotify takes an inotify instance and a watch, and gives them back at once (inotify_init1 and inotify_add_watch on
// /); where one is refused it reads
//
//	/proc/sys/fs/inotify/{max_user_instances,max_user_watches}    128
//
// https://man7.org/linux/man-pages/man7/inotify.7.html
//
// The kernel counts instances and watches for each user and shows the counts nowhere: to add up the descriptors and
// fdinfo of all processes would cost more than all other checks together. To try proves what counts: that root, which
// kubelet, the runtime and most containers are (the limit is shared by all of them), gets none any more. That another
// user is at its limit, and how near the limit is, is not seen.
//
// Known false alarms: none; the kernel's refusal is the fault itself.

const inotifyID = "inotify"

// Inotify finds nodes on which root cannot watch files any more.
func Inotify() detect.Check {
	return detect.Check{
		ID: inotifyID, Domain: "kernel",
		Summary: "root has used up its inotify instances or watches",
		Advice: "Raise fs.inotify.max_user_instances (8192 is usual on large nodes) or fs.inotify.max_user_watches " +
			"(524288) with sysctl and a file in /etc/sysctl.d. Who holds most: find /proc/*/fd -lname " +
			"anon_inode:inotify 2>/dev/null | cut -d/ -f3 | sort | uniq -c | sort -n | tail.",
		Doc: detect.Doc{
			Reads: []string{"inotify_init1(2) and inotify_add_watch(2), given back at once",
				"/proc/sys/fs/inotify/{max_user_instances,max_user_watches}"},
			Why: "Kubelet, the runtime, kubectl logs -f and many programs in pods watch files. Without an instance " +
				"they fail with \"too many open files\", without a watch with \"no space left on device\"; a kubelet " +
				"that restarts then does not come up.",
			Faults: []detect.Fault{
				{Reason: "InotifyInstancesExhausted", Severity: finding.Warning,
					When: "the kernel refuses root another instance; what runs goes on, what starts may fail"},
				{Reason: "InotifyWatchesExhausted", Severity: finding.Warning,
					When: "the kernel refuses root another watch"},
			},
			FalseAlarms: "None. Not seen: other users at their own limit, and how near a limit is.",
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
		value = "unknown" // the refusal is proof enough
	}
	value = checkkit.Sanitize(value, 32)
	return []finding.Finding{{
		Check: inotifyID, Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf("root gets no further inotify %s: fs.inotify.%s is %s", what, limit, value),
		Facts:   map[string]string{"limit": value},
	}}, nil
}
