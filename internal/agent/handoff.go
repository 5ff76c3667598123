package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/kube"
)

// ContainerPaths is where another process finds what an agent that has left its container goes on reading there: the paths lead
// through the agent's own descriptors. All is empty where the agent was started on the host. They are asked for on the
// socket and not published as links: the number of a process that has ended may become another's.
type ContainerPaths struct {
	Config         string `json:"config,omitempty"`         // configuration file
	ServiceAccount string `json:"serviceAccount,omitempty"` // directory of the pod's token
	Apiserver      string `json:"apiserver,omitempty"`      // host:port for it
}

// placeLimit is how long a person waits for an agent that hangs before the host's own files must do.
const placeLimit = 500 * time.Millisecond

// AskPlace asks the running agent. No answer is an empty place: the host's own files are all that there is.
func AskPlace(ctx context.Context, socket string) ContainerPaths {
	ctx, cancel := context.WithTimeout(ctx, placeLimit)
	defer cancel()
	var place ContainerPaths
	if err := ask(ctx, socket, http.MethodGet, "/place", &place); err != nil {
		return ContainerPaths{}
	}
	return place
}

func (d *daemon) place() (ContainerPaths, error) {
	a := d.current.Load()
	if a == nil {
		return ContainerPaths{}, errStarting
	}
	if !a.cfg.FromContainer {
		return ContainerPaths{}, nil
	}
	return ContainerPaths{seenByOthers(d.source.File), seenByOthers(a.cfg.ServiceAccountDir), kube.PodServer()}, nil
}

// seenByOthers returns where another process finds a path of this one.
func seenByOthers(path string) string {
	if rest, ok := strings.CutPrefix(path, "/proc/self/"); ok {
		return fmt.Sprintf("/proc/%d/%s", os.Getpid(), rest)
	}
	return path
}
