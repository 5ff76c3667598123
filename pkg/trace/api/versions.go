package api

import (
	"context"
	"net/url"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/baseline"
)

// Versions is the response about versions of the nodes' software in the last 7 days.
type Versions struct {
	From     time.Time          `json:"from"`
	To       time.Time          `json:"to"`
	Slower   []baseline.Slower  `json:"slower"`
	Versions []baseline.Version `json:"versions"`
}

// Versions returns the time of each stage by version of the node's software, and the versions that are slower.
func (s *Server) Versions(ctx context.Context, _ url.Values) (Versions, error) {
	to := s.Now().UTC().Truncate(time.Hour)
	answer := Versions{From: to.Add(-week), To: to, Slower: []baseline.Slower{}, Versions: []baseline.Version{}}
	cells, err := s.Store.Cells(ctx, answer.From, answer.To)
	if err != nil {
		return answer, err
	}
	versions, slower := baseline.Compare(cells)
	answer.Versions, answer.Slower = append(answer.Versions, versions...), append(answer.Slower, slower...)
	return answer, nil
}
