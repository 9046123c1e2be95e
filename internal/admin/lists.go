package admin

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/adminapi"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/keys"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/limiter"
	"github.com/caddy-rate-limit/caddy-rate-limit/store"
)

// listSource is a part of a list. It returns about limit entries behind a cursor, and the next
// cursor, which is empty at its end.
type listSource[T any] func(cursor string, limit int) (entries []T, next string, err error)

// readPage returns a page of a list that has several parts. A cursor is the number of a part, and the
// cursor in it.
func readPage[T any](a *OperatorRequest, parts []listSource[T]) (entries []T, next string, err error) {
	number, cursor := 0, ""
	if a.cursor != "" {
		text, behind, _ := strings.Cut(a.cursor, ".")
		if number, err = strconv.Atoi(text); err != nil || number < 0 || number >= len(parts) {
			return nil, "", cursorError(store.ErrCursor)
		}
		cursor = behind
	}
	entries = []T{}
	for ; number < len(parts); number++ {
		if len(entries) >= a.limit {
			return entries, strconv.Itoa(number) + ".", nil
		}
		more, next, err := parts[number](cursor, a.limit-len(entries))
		if err != nil {
			return nil, "", err
		}
		entries = append(entries, more...)
		if next != "" {
			return entries, strconv.Itoa(number) + "." + next, nil
		}
		cursor = ""
	}
	return entries, "", nil
}

func cursorError(err error) error {
	return Error(http.StatusBadRequest, "cursor: %w, without a cursor", err)
}

// zonesByStore returns one zone of the request for each store, by the name of the store.
func (a *OperatorRequest) zonesByStore() (zones []*Zone) {
	byStore := make(map[string]*Zone)
	for _, z := range a.zones {
		byStore[z.Identity.Store] = z
	}
	for _, name := range slices.Sorted(maps.Keys(byStore)) {
		zones = append(zones, byStore[name])
	}
	return zones
}

// listStored returns a part of a list that the store of the zone has. view returns nil for an entry
// that is not listed.
func listStored[T any](a *OperatorRequest, z *Zone, kind store.ListingKind, view func(store.Listed) *T) listSource[T] {
	return func(cursor string, limit int) (entries []T, next string, err error) {
		page, err := z.Limiter.AuthoritativeStore().List(a.Ctx, store.Listing{Zone: z.Name, Kind: kind, Cursor: cursor, Limit: limit})
		if errors.Is(err, store.ErrCursor) {
			return nil, "", cursorError(err)
		}
		if err != nil {
			return nil, "", Error(http.StatusServiceUnavailable,
				"the store of zone %q can't be listed (%w): ask again when it works", z.Name, err)
		}
		for _, listed := range page.Entries {
			if v := view(listed); v != nil {
				entries = append(entries, *v)
			}
		}
		return entries, page.Next, nil
	}
}

// viewListedKey returns the key of an entry of a list as operators may see it.
func (z *Zone) viewListedKey(l store.Listed) adminapi.ShownKey {
	if l.Hash != "" {
		return adminapi.ShownKey{HashedKey: l.Hash}
	}
	key := keys.NewShown(z.Limiter.HashSecret, l.Key)
	key.Cut = key.Cut || l.Cut
	return key.View()
}

// listBans returns a page of the bans in force.
func (a *OperatorRequest) listBans() (any, error) {
	if err := a.requireBan(); err != nil {
		return nil, err
	}
	var parts []listSource[adminapi.ListedBan]
	for _, z := range a.zonesByStore() {
		parts = append(parts, listStored(a, z, store.Bans, z.viewListedBan))
	}
	bans, next, err := readPage(a, parts)
	return adminapi.BanList{Bans: bans, Next: next}, err
}

// viewListedBan returns a ban as operators see it. It returns nil for the ban of an alternative that the
// zone doesn't have any more.
func (z *Zone) viewListedBan(l store.Listed) *adminapi.ListedBan {
	for i := range z.Keys {
		if limiter.VariantOf(i) != l.Variant {
			continue
		}
		v := &adminapi.ListedBan{
			ShownKey: z.viewListedKey(l), Origin: "denials", Ends: FractionalSeconds(l.Ban.EndsAfter), Shadow: !z.Enforces(l.Key),
			Until: adminapi.Instant(time.Now().Add(time.Duration(l.Ban.EndsAfter) * time.Microsecond)),
		}
		switch {
		case l.Ban.ByOperator:
			v.Origin = "operator"
		case z.Hold != nil:
			v.Origin = "response"
		}
		v.Alternative = z.AlternativeText(i)
		return v
	}
	return nil
}

// listOverrides returns a page of the overrides. The overrides of the configuration come first.
func (a *OperatorRequest) listOverrides() (any, error) {
	parts := []listSource[adminapi.ListedOverride]{a.listConfigured}
	for _, z := range a.zonesByStore() {
		if z.RuntimeOverrides {
			parts = append(parts, listStored(a, z, store.Overrides, z.viewListedOverride))
		}
	}
	overrides, next, err := readPage(a, parts)
	return adminapi.OverrideList{Overrides: overrides, Next: next}, err
}

// listConfigured is the part of the overrides in the configuration, in the order of their keys. A cursor
// is the number of the next one.
func (a *OperatorRequest) listConfigured(cursor string, limit int) (list []adminapi.ListedOverride, next string, err error) {
	z := a.zones[0]
	sorted := slices.Sorted(maps.Keys(z.Overrides.All))
	from, err := strconv.Atoi(cmp.Or(cursor, "0"))
	if err != nil || from < 0 || from > len(sorted) {
		return nil, "", cursorError(store.ErrCursor)
	}
	to := min(from+limit, len(sorted))
	for _, key := range sorted[from:to] {
		list = append(list, adminapi.ListedOverride{
			ShownKey: keys.NewShown(z.Limiter.HashSecret, key).View(),
			Override: adminapi.Override{From: "config", Limits: z.Overrides.All[key].LimitTexts()},
		})
	}
	if to < len(sorted) {
		next = strconv.Itoa(to)
	}
	return list, next, nil
}

// viewListedOverride returns an override of the store as operators see it.
func (z *Zone) viewListedOverride(l store.Listed) *adminapi.ListedOverride {
	override, _ := viewStoredOverride(z.Zone, l.Override)
	return &adminapi.ListedOverride{ShownKey: z.viewListedKey(l), Override: *override}
}
