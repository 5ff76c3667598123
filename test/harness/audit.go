package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nodeagent/nodeagent/test/lab"
)

// audited has the used fields of a line of the apiserver's audit log.
type audited struct {
	Stage, Verb   string
	User          struct{ Username string }
	ObjectRef     struct{ Resource, Subresource string }
	RequestObject struct {
		Spec struct {
			User               string
			ResourceAttributes struct{ Resource, Subresource string }
		}
	}
}

// agentUser is the suffix of the agent's ServiceAccount name. Another agent here may use the node's own identity.
const agentUser = ":nodeagent"

// AuditSize returns the current length of the apiserver's audit log, in bytes.
func AuditSize(l *lab.Lab) (int64, error) {
	info, err := os.Stat(l.AuditLog())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// AgentRequests counts the requests between two sizes of the audit log that the agent made or caused. A token review
// does not show whose token it is; in the lab the only other caller of kubelet is the apiserver, which has a
// certificate.
func AgentRequests(l *lab.Lab, from, to int64) (map[string]int, error) {
	file, err := os.Open(l.AuditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, from, to-from))
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e audited
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // the first and the last line may be cut
		}
		object, spec := e.ObjectRef, e.RequestObject.Spec
		switch began := e.Verb == "watch" && e.Stage == "ResponseStarted"; {
		case !began && (e.Stage != "ResponseComplete" || e.Verb == "watch"):
		case strings.HasSuffix(e.User.Username, agentUser):
			counts[fmt.Sprintf("%s %s %s", e.Verb, object.Resource, object.Subresource)]++
		case object.Resource == "tokenreviews":
			counts["kubelet's TokenReview"]++
		case object.Resource == "subjectaccessreviews" && strings.HasSuffix(spec.User, agentUser):
			r := spec.ResourceAttributes
			counts[fmt.Sprintf("kubelet's SubjectAccessReview %s/%s", r.Resource, r.Subresource)]++
		}
	}
	return counts, lines.Err()
}
