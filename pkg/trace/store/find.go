package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// Row is a stored verdict.
type Row struct {
	UID       string          `json:"uid"`
	Act       record.Act      `json:"act"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Node      string          `json:"node,omitempty"`
	Owner     string          `json:"owner,omitempty"`
	Outcome   verdict.Outcome `json:"outcome"`
	Why       string          `json:"why,omitempty"`
	Class     string          `json:"class,omitempty"`
	First     string          `json:"reasonFirst,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	At        time.Time       `json:"at"`
	Judged    float64         `json:"judgedSeconds"`
	User      float64         `json:"userSeconds"`
	Stages    string          `json:"stages,omitempty"`
	Evidence  *follow.Act     `json:"-"`
	Key       string          `json:"-"` // of the act
}

const maxRows = 50

// Find returns the newest verdicts of a pod, by UID or by namespace and name, with the evidence of misses.
func (s *Store) Find(ctx context.Context, uid, namespace, name string) (found []Row, err error) {
	for _, db := range s.all() {
		rows, err := db.QueryContext(ctx, s.rebind(`SELECT acts.key, acts.uid, acts.act, namespace, name, node, owner, outcome, why, class, first, reason, at,
 judged, "user", stages, coalesce(evidence.act, '') FROM acts LEFT JOIN evidence USING (key)
 WHERE (? <> '' AND acts.uid = ?) OR (? = '' AND namespace = ? AND name = ?) ORDER BY at DESC LIMIT ?`), uid, uid, uid, namespace, name, maxRows)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			r, err := scan(rows)
			if err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			found = append(found, r)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func scan(rows *sql.Rows) (r Row, err error) {
	var at, judged, user int64
	var evidence string
	if err := rows.Scan(&r.Key, &r.UID, &r.Act, &r.Namespace, &r.Name, &r.Node, &r.Owner, &r.Outcome, &r.Why, &r.Class, &r.First, &r.Reason, &at,
		&judged, &user, &r.Stages, &evidence); err != nil {
		return r, err
	}
	r.At, r.Judged, r.User = time.UnixMilli(at).UTC(), float64(judged)/1000, float64(user)/1000
	if evidence != "" {
		r.Evidence = &follow.Act{}
		return r, json.Unmarshal([]byte(evidence), r.Evidence)
	}
	return r, nil
}
