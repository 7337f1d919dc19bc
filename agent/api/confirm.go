package api

import (
	"context"
	"net/http"
	"net/url"

	"berth/migration"
)

// StoryList is the answer of GET /v1/stories.
type StoryList struct {
	Stories []migration.Story `json:"stories"`
}

// confirmRows are what ends a move that is finished, and the stories themselves.
func confirmRows() []route {
	return []route{
		write(http.MethodPost, "/v1/migrations/{migration}/confirm", "migration-confirm", "Confirm a resize or cold migration: what is kept to go back is given up. By its uuid, or its guest's name or uuid.", everyone,
			func(s *Server, r *http.Request, _ nothing) (migration.Migration, error) {
				return s.svc.Migrations.Confirm(r.Context(), r.PathValue("migration"))
			}).withStatus(http.StatusAccepted).canRelay().asAct(actConfirm),
		write(http.MethodPost, "/v1/migrations/{migration}/revert", "migration-revert", "Revert a resize or cold migration: the guest becomes what and where it was. By its uuid, or its guest's name or uuid.", everyone,
			func(s *Server, r *http.Request, _ nothing) (migration.Migration, error) {
				return s.svc.Migrations.Revert(r.Context(), r.PathValue("migration"))
			}).withStatus(http.StatusAccepted).canRelay().asAct(actRevert),
		read(http.MethodGet, "/v1/stories", "story-list", "The steps of every kind of move, in order, with what undoes each.", everyone,
			func(s *Server, _ *http.Request) (StoryList, error) {
				return StoryList{Stories: s.svc.Migrations.Stories()}, nil
			}).canRelay(),
	}
}

// ConfirmMigration confirms a finished move, by its uuid or its guest's name or uuid;
// safe to repeat.
func (c *Client) ConfirmMigration(ctx context.Context, ref string) (out migration.Migration, err error) {
	return out, c.finish(ctx, ref, "confirm", &out)
}

// RevertMigration takes a finished move back; safe to repeat.
func (c *Client) RevertMigration(ctx context.Context, ref string) (out migration.Migration, err error) {
	return out, c.finish(ctx, ref, "revert", &out)
}

func (c *Client) finish(ctx context.Context, ref, how string, out any) error {
	return c.do(ctx, http.MethodPost, "/v1/migrations/"+url.PathEscape(ref)+"/"+how, nothing{}, out, repeatable)
}

// Stories asks for the steps of every kind of move.
func (c *Client) Stories(ctx context.Context) ([]migration.Story, error) {
	var out StoryList
	err := c.do(ctx, http.MethodGet, "/v1/stories", nil, &out, repeatable)
	return out.Stories, err
}
