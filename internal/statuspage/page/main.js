// Everything begins here.

function showBanner(text) {
	$('banner').hidden = text === '';
	setText($('banner'), text);
}

// every calls f again and again, a while after its last call has ended. It rests while nobody looks. An
// error of one call, which the console shows, doesn't end the others.
async function every(milliseconds, f) {
	for (;;) {
		try {
			if (!document.hidden) await f();
		} catch (e) {
			console.error(e);
		}
		await new Promise((done) => setTimeout(done, milliseconds));
	}
}

async function begin() {
	if (token === '') {
		showBanner('This address has no token. Open the whole address that “caddy rate-limit ui” has printed.');
		return;
	}
	try {
		const names = await call('GET', '/instances');
		instances = names.map((name, i) => new Instance(name, i));
	} catch (e) {
		showBanner(e.status === 403 ? 'The token of this page is not valid any more. Open the address that “caddy rate-limit ui” has printed last.' : e.message);
		return;
	}
	$('explain-where').replaceChildren(...instances.map((i) => element('option', { value: i.number }, i.name)));
	$('explain-where-label').hidden = instances.length < 2;
	document.body.classList.toggle('has-several', instances.length > 1);
	showInstances();
	const firstAnswers = Promise.all(instances.map((instance) => new Promise((answered) => every(second, () => instance.poll().then(answered)))));
	await Promise.race([firstAnswers, new Promise((done) => setTimeout(done, second))]);
	every(second, () => {
		showBanner(instances.every((i) => i.error && i.error.status === 0) ? instances[0].error.message : '');
		showInstances();
		showZones(elapsed());
		showNow();
		refreshLists();
		ageExplanation();
	});
}

begin();
