package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/agent/status"
	"github.com/nodeagent/nodeagent/internal/kube"
)

// placeLimit is how long a person waits for an agent that hangs before the host's own files must do.
const placeLimit = 500 * time.Millisecond

// AskContainerPaths asks the running agent. No answer is an empty place: the host's own files are all that there is.
func AskContainerPaths(ctx context.Context, socket string) status.ContainerPaths {
	ctx, cancel := context.WithTimeout(ctx, placeLimit)
	defer cancel()
	var place status.ContainerPaths
	if err := status.Ask(ctx, socket, http.MethodGet, "/place", &place); err != nil {
		return status.ContainerPaths{}
	}
	return place
}

func (d *daemon) containerPaths() (status.ContainerPaths, error) {
	a := d.current.Load()
	if a == nil {
		return status.ContainerPaths{}, errStarting
	}
	if !a.cfg.FromContainer {
		return status.ContainerPaths{}, nil
	}
	return status.ContainerPaths{Config: seenByOthers(d.source.File),
		ServiceAccount: seenByOthers(a.cfg.ServiceAccountDir), Apiserver: kube.PodServer()}, nil
}

// seenByOthers returns where another process finds a path of this one.
func seenByOthers(path string) string {
	if rest, ok := strings.CutPrefix(path, "/proc/self/"); ok {
		return fmt.Sprintf("/proc/%d/%s", os.Getpid(), rest)
	}
	return path
}
