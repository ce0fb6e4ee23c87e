// Program digitalocean tests the fake with DigitalOcean's own clients: godo for the API, go-metadata for the metadata
// service at its fixed address. It makes the calls of DigitalOcean's CSI driver in the same order, and also tests
// pagination, errors and polling. It prints one line per check; the last line is the sum.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	metadata "github.com/digitalocean/go-metadata"
	"github.com/digitalocean/godo"
)

const region = "nyc3"

type suite struct {
	ctx            context.Context
	api            *godo.Client
	links          string
	passed, failed int
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: digitalocean URL LINKS")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	// Without retries, as in the driver: retries would wait at every 429.
	api := godo.NewClient(&http.Client{Transport: bearer{}})
	if err := godo.SetBaseURL(os.Args[1])(api); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	p := &suite{ctx: ctx, api: api, links: os.Args[2]}
	droplet := p.metadata()
	p.account()
	volume := p.create("pvc-godo", "")
	p.attach(volume, droplet)
	p.conflicts(volume, droplet)
	p.expand(volume)
	snapshot := p.snapshot(volume)
	restored := p.create("pvc-restored", snapshot)
	p.tags(volume)
	p.pages()
	p.detach(volume, droplet)
	p.delete(volume, restored, snapshot)
	fmt.Printf("digitalocean: %d passed, %d failed\n", p.passed, p.failed)
	if p.failed > 0 {
		os.Exit(1)
	}
}

// bearer adds the token to each request.
type bearer struct{}

func (bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer any")
	return http.DefaultTransport.RoundTrip(request)
}

// check counts one check and prints its result.
func (p *suite) check(what string, good bool, found ...any) {
	if good {
		p.passed++
		fmt.Printf("ok %s\n", what)
		return
	}
	p.failed++
	fmt.Printf("not ok %s: %v\n", what, found)
}

// refused checks that an error has this status and that its message contains the text.
func (p *suite) refused(what string, err error, status int, text string) {
	var response *godo.ErrorResponse
	good := errors.As(err, &response) && response.Response.StatusCode == status && strings.Contains(response.Message, text)
	p.check(what, good, err)
}

// metadata reads what a driver reads when it starts, from the address that is built into the client.
func (p *suite) metadata() int {
	client := metadata.NewClient()
	id, err := client.DropletID()
	p.check("the droplet's id", err == nil && id == 2756294, id, err)
	slug, err := client.Region()
	p.check("the droplet's region", err == nil && slug == region, slug, err)
	all, err := client.Metadata()
	p.check("the whole document", err == nil && all.DropletID == id && all.Region == region, all, err)
	_, err = client.Tags()
	p.check("tags behind a redirect", err == nil, err)
	_, err = client.AuthToken()
	p.check("missing metadata is a 404", err != nil && strings.Contains(err.Error(), "404"), err)
	return id
}

// account makes the calls with which a driver checks the account when it starts.
func (p *suite) account() {
	account, response, err := p.api.Account.Get(p.ctx)
	p.check("the account", err == nil && account.VolumeLimit == 100 && account.Status == "active", account, err)
	rate := response.Rate
	ahead := time.Until(rate.Reset.Time)
	p.check("rate limits", rate.Limit == 5000 && rate.Remaining == 4999 && ahead > 0 && ahead <= time.Hour, rate)
	list := &godo.ListVolumeParams{Region: region, ListOptions: &godo.ListOptions{Page: 1, PerPage: 1}}
	_, response, err = p.api.Storage.ListVolumes(p.ctx, list)
	p.check("no volumes yet", err == nil && response.Meta.Total == 0 && response.Links.IsLastPage(), response, err)
	regions, _, err := p.api.Regions.List(p.ctx, nil)
	p.check("regions", err == nil && len(regions) > 5, regions, err)
}

// create creates a volume, empty or from a snapshot; a restored volume has the snapshot's size.
func (p *suite) create(name, snapshot string) string {
	found, _, err := p.api.Storage.ListVolumes(p.ctx, &godo.ListVolumeParams{Region: region, Name: name})
	p.check(name+" does not exist yet", err == nil && len(found) == 0, found, err)
	if snapshot != "" {
		_, _, err := p.api.Snapshots.Get(p.ctx, snapshot)
		p.check("its snapshot exists", err == nil, err)
	}
	request := &godo.VolumeCreateRequest{Region: region, Name: name, SizeGigaBytes: 1, SnapshotID: snapshot}
	volume, response, err := p.api.Storage.CreateVolume(p.ctx, request)
	if err != nil {
		p.check(name+" is created", false, err)
		return ""
	}
	size := int64(1)
	if snapshot != "" {
		size = 2
	}
	p.check(name+" is created", response.StatusCode == http.StatusCreated && volume.SizeGigaBytes == size, volume)
	p.check("creation time", time.Since(volume.CreatedAt) < time.Hour, volume.CreatedAt)
	_, _, err = p.api.Storage.CreateVolume(p.ctx, request)
	p.refused("a second one with the same name", err, http.StatusConflict, "already exists")
	return volume.ID
}

// wait polls an action until it ends, and checks that it did not end immediately.
func (p *suite) wait(what, volume string, action *godo.Action, err error) {
	if err != nil {
		p.check(what, false, err)
		return
	}
	first := action.Status
	for action.Status == godo.ActionInProgress && err == nil {
		time.Sleep(50 * time.Millisecond)
		action, _, err = p.api.StorageActions.Get(p.ctx, volume, action.ID)
	}
	good := err == nil && first == godo.ActionInProgress && action.Status == godo.ActionCompleted
	p.check(what, good && action.CompletedAt != nil, first, action, err)
}

func (p *suite) attach(volume string, droplet int) {
	found, _, err := p.api.Droplets.Get(p.ctx, droplet)
	p.check("the droplet", err == nil && len(found.VolumeIDs) == 0 && found.Region.Slug == region, found, err)
	action, _, err := p.api.StorageActions.Attach(p.ctx, volume, droplet)
	_, _, busy := p.api.StorageActions.Attach(p.ctx, volume, droplet)
	p.refused("a second attach during the first", busy, http.StatusUnprocessableEntity, "Droplet already has a pending event")
	p.wait("attach", volume, action, err)
	now, _, err := p.api.Storage.GetVolume(p.ctx, volume)
	p.check("the volume's droplet", err == nil && len(now.DropletIDs) == 1 && now.DropletIDs[0] == droplet, now, err)
	p.device("the device", 1)
}

// device waits until the volume's link points to a device of this size.
func (p *suite) device(what string, gib int64) {
	link := filepath.Join(p.links, "2756294", "scsi-0DO_Volume_pvc-godo")
	var size int64
	for i := 0; i < 200 && size != gib<<30; i++ {
		if file, err := os.Open(link); err == nil {
			size, _ = file.Seek(0, 2)
			file.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	p.check(what, size == gib<<30, size)
}

func (p *suite) conflicts(volume string, droplet int) {
	_, _, err := p.api.StorageActions.Attach(p.ctx, volume, droplet)
	p.refused("attach when already attached", err, http.StatusUnprocessableEntity, "This volume is already attached")
	_, err = p.api.Storage.DeleteVolume(p.ctx, volume)
	p.refused("delete while attached", err, http.StatusConflict, "cannot be deleted")
	_, _, err = p.api.StorageActions.DetachByDropletID(p.ctx, volume, droplet+1)
	p.refused("detach from an unknown droplet", err, http.StatusNotFound, "could not be found")
	_, _, err = p.api.Storage.GetVolume(p.ctx, "506f78a4-e098-11e5-ad9f-000f53306ae1")
	p.refused("get of a missing volume", err, http.StatusNotFound, "could not be found")
}

func (p *suite) expand(volume string) {
	action, _, err := p.api.StorageActions.Resize(p.ctx, volume, 2, region)
	p.wait("resize", volume, action, err)
	_, _, err = p.api.StorageActions.Resize(p.ctx, volume, 1, region)
	p.refused("resize to a smaller size", err, http.StatusUnprocessableEntity, "")
	p.device("the device has grown", 2)
}

func (p *suite) snapshot(volume string) string {
	list, _, err := p.api.Storage.ListSnapshots(p.ctx, volume, &godo.ListOptions{Page: 1, PerPage: 50})
	p.check("no snapshots yet", err == nil && len(list) == 0, list, err)
	request := &godo.SnapshotCreateRequest{VolumeID: volume, Name: "snapshot-1"}
	made, _, err := p.api.Storage.CreateSnapshot(p.ctx, request)
	if err != nil {
		p.check("snapshot", false, err)
		return ""
	}
	p.check("snapshot", made.MinDiskSize == 2 && made.ResourceID == volume && made.ResourceType == "volume", made)
	_, _, err = p.api.Storage.CreateSnapshot(p.ctx, request)
	p.refused("a second one with the same name", err, http.StatusConflict, "")
	_, _, err = p.api.Storage.CreateSnapshot(p.ctx, &godo.SnapshotCreateRequest{VolumeID: volume, Name: "snapshot-2"})
	p.refused("another within ten minutes", err, http.StatusTooManyRequests, "one request per 10m0s")
	all, _, err := p.api.Snapshots.ListVolume(p.ctx, &godo.ListOptions{Page: 1, PerPage: 200})
	p.check("snapshots of volumes", err == nil && len(all) == 1 && all[0].ID == made.ID, all, err)
	return made.ID
}

// tags does what a driver with a tag does: it tags the volume, and creates the tag if that fails.
func (p *suite) tags(volume string) {
	request := &godo.TagResourcesRequest{
		Resources: []godo.Resource{{ID: volume, Type: godo.VolumeResourceType}},
	}
	_, err := p.api.Tags.TagResources(p.ctx, "k8s:test", request)
	p.refused("tagging with a missing tag", err, http.StatusNotFound, "")
	_, _, err = p.api.Tags.Create(p.ctx, &godo.TagCreateRequest{Name: "k8s:test"})
	p.check("create the tag", err == nil, err)
	_, err = p.api.Tags.TagResources(p.ctx, "k8s:test", request)
	p.check("tag the volume", err == nil, err)
	now, _, err := p.api.Storage.GetVolume(p.ctx, volume)
	p.check("the volume has it", err == nil && len(now.Tags) == 1 && now.Tags[0] == "k8s:test", now, err)
}

// pages follows the links of a listing, as a driver does.
func (p *suite) pages() {
	var seen []string
	list := &godo.ListOptions{PerPage: 1}
	for {
		params := &godo.ListVolumeParams{Region: region, ListOptions: list}
		volumes, response, err := p.api.Storage.ListVolumes(p.ctx, params)
		if err != nil {
			p.check("pages", false, err)
			return
		}
		for _, volume := range volumes {
			seen = append(seen, volume.Name)
		}
		if response.Links.IsLastPage() {
			break
		}
		page, err := response.Links.CurrentPage()
		if err != nil || len(seen) > 10 {
			p.check("pages", false, page, err, seen)
			return
		}
		list.Page = page + 1
	}
	p.check("pages", len(seen) == 2 && seen[0] == "pvc-godo" && seen[1] == "pvc-restored", seen)
}

func (p *suite) detach(volume string, droplet int) {
	action, _, err := p.api.StorageActions.DetachByDropletID(p.ctx, volume, droplet)
	p.wait("detach", volume, action, err)
	_, _, err = p.api.StorageActions.DetachByDropletID(p.ctx, volume, droplet)
	p.refused("detach when already detached", err, http.StatusUnprocessableEntity, "Attachment not found")
	actions, _, err := p.api.StorageActions.List(p.ctx, volume, nil)
	p.check("its actions", err == nil && len(actions) == 3 && actions[0].Type == "detach_volume", actions, err)
}

func (p *suite) delete(volume, restored, snapshot string) {
	for _, id := range []string{volume, restored} {
		_, err := p.api.Storage.DeleteVolume(p.ctx, id)
		p.check("a volume is deleted", err == nil, err)
		_, err = p.api.Storage.DeleteVolume(p.ctx, id)
		p.refused("delete it again", err, http.StatusNotFound, "could not be found")
	}
	_, err := p.api.Snapshots.Delete(p.ctx, snapshot)
	p.check("a snapshot is deleted", err == nil, err)
	_, err = p.api.Snapshots.Delete(p.ctx, snapshot)
	p.refused("delete it again", err, http.StatusNotFound, "could not be found")
}
