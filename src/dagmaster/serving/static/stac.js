for (const place of document.querySelectorAll(".root")) place.textContent = new URL(".", location.href).href;
